use std::collections::BTreeMap;

use super::Invariant;
use crate::lease::LeaseState;
use crate::request::RequestState;
use crate::state::State;

pub(super) const INVARIANT: Invariant =
    Invariant { sentence: "a matched request has exactly one lease that does not end, and only then", check };

fn check(state: &State) -> Vec<String> {
    let mut held = BTreeMap::new();
    for (id, lease) in &state.leases {
        if !matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
            held.entry(lease.request).or_insert_with(Vec::new).push(*id);
        }
    }
    let mut violations = Vec::new();
    for (id, request) in &state.requests {
        let leases = held.remove(id).unwrap_or_default();
        let right = match request.state {
            RequestState::Matched => leases.len() == 1 && request.lease == leases.first().copied(),
            _ => leases.is_empty(),
        };
        if !right {
            violations.push(format!("{id} is {:?} with leases {leases:?}", request.state));
        }
    }
    violations.extend(held.into_keys().map(|id| format!("{id} has a lease and does not exist")));
    violations
}
