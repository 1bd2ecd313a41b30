use crate::model::lease::LeaseState;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const INVARIANT: Invariant = Invariant {
    sentence: "a lease is replaced only while it is being reclaimed, by one of the same request that says so",
    check,
};

/// The state drops ended leases one by one.
fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, lease) in &state.leases {
        let Some(next) = lease.moved_to else { continue };
        if lease.reclaim.is_none() || lease.state.is_held() {
            violations.push(format!("{id} is replaced by {next} and not reclaimed"));
        }
        let Some(found) = state.leases.get(&next) else {
            if !matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
                violations.push(format!("{next} does not exist and is to replace {id}"));
            }
            continue;
        };
        if found.moved_from != Some(*id) || found.request != lease.request {
            violations.push(format!("{next} does not know that it replaces {id}"));
        }
    }
    violations
}
