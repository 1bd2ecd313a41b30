use std::collections::BTreeMap;

use super::Invariant;
use crate::id::LeaseId;
use crate::lease::LeaseState;
use crate::request::{Request, RequestState};
use crate::state::State;

pub(super) const INVARIANT: Invariant = Invariant {
    sentence: "a matched request has exactly the leases that it names, besides those that are to replace them, and only then has it any",
    check,
};

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
            RequestState::Matched => request.lease.is_some() && are_its_own(state, request, leases.clone()),
            _ => leases.is_empty(),
        };
        if !right {
            violations.push(format!("{id} is {:?} with leases {leases:?}", request.state));
        }
    }
    violations.extend(held.into_keys().map(|id| format!("{id} has a lease and does not exist")));
    violations
}

/// Whether those are what the request names, and what is to replace one of these, which each knows of the other.
fn are_its_own(state: &State, request: &Request, mut leases: Vec<LeaseId>) -> bool {
    let mut own: Vec<LeaseId> = request.leases().collect();
    let next = own.iter().filter_map(|id| Some((*id, state.leases.get(id)?.moved_to?)));
    let next: Vec<(LeaseId, LeaseId)> = next.collect();
    if next.iter().any(|(old, next)| state.leases.get(next).is_none_or(|lease| lease.moved_from != Some(*old))) {
        return false;
    }
    own.extend(next.iter().map(|(_, next)| *next));
    own.sort_unstable();
    leases.sort_unstable();
    own == leases
}
