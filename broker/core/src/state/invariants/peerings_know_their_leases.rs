use std::collections::{BTreeMap, BTreeSet};

use comity_types::{LeaseId, LeaseState};

use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const PEERINGS_KNOW_THEIR_LEASES: Invariant = Invariant {
    sentence: "a peering lists exactly the leases that use it, and does not close while one of them is to go on",
    check,
};

fn check(state: &State) -> Vec<String> {
    let mut expected: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (id, lease) in state.leases.iter().filter(|(_, lease)| lease.state != LeaseState::Ended) {
        expected.entry(lease.peering).or_default().insert(*id);
    }
    let mut violations = Vec::new();
    for (id, peering) in &state.peerings {
        let leases = expected.remove(id).unwrap_or_default();
        if leases != peering.leases {
            violations.push(format!("{id} lists {:?} but {leases:?} use it", peering.leases));
        }
        // Only a revocation closes one whose leases are still ending.
        let goes_on = |id: &LeaseId| state.leases.get(id).is_some_and(|lease| lease.state != LeaseState::Ending);
        if leases.iter().any(goes_on) && !peering.state.accepts_leases() {
            violations.push(format!("{id} is {:?} with leases {leases:?}", peering.state));
        }
        if leases.is_empty() != peering.idle_since.is_some() {
            violations.push(format!("{id} is idle since {:?} with leases {leases:?}", peering.idle_since));
        }
    }
    violations.extend(expected.into_iter().map(|(id, leases)| format!("{id} does not exist but {leases:?} use it")));
    violations
}
