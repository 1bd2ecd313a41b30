use comity_types::LeaseState;

use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const REPLACEMENTS_NAME_THEIR_PREDECESSOR: Invariant = Invariant {
    sentence: "only a lease under reclaim has a replacement, which belongs to the same request and names it",
    check,
};

/// The state drops ended leases one by one.
fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, lease) in &state.leases {
        let Some(next) = lease.moved_to else { continue };
        if lease.reclaim.is_none() || lease.state.is_held() {
            violations.push(format!("{id} is replaced by {next} but not under reclaim"));
        }
        let Some(found) = state.leases.get(&next) else {
            if !matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
                violations.push(format!("{next} is to replace {id} but does not exist"));
            }
            continue;
        };
        if found.moved_from != Some(*id) || found.request != lease.request {
            violations.push(format!("{next} does not name {id} as the lease it replaces"));
        }
    }
    violations
}
