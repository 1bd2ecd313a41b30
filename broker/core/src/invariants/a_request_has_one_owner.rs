use std::collections::BTreeMap;

use super::Invariant;
use crate::id::LeaseId;
use crate::lease::LeaseState;
use crate::request::RequestState;
use crate::state::State;

pub(super) const INVARIANT: Invariant = Invariant {
    sentence: "a matched request has exactly one lease that does not end, besides the one that is to replace it, and only then",
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
            RequestState::Matched => request.lease.is_some_and(|lease| is_owner(state, lease, &leases)),
            _ => leases.is_empty(),
        };
        if !right {
            violations.push(format!("{id} is {:?} with leases {leases:?}", request.state));
        }
    }
    violations.extend(held.into_keys().map(|id| format!("{id} has a lease and does not exist")));
    violations
}

/// Whether those are `owner` and what is to replace it, which each knows of the other.
fn is_owner(state: &State, owner: LeaseId, leases: &[LeaseId]) -> bool {
    let next = state.leases.get(&owner).and_then(|lease| lease.moved_to);
    let knows = |next: LeaseId| state.leases.get(&next).is_some_and(|lease| lease.moved_from == Some(owner));
    leases.iter().all(|lease| *lease == owner || (Some(*lease) == next && knows(*lease)))
        && leases.contains(&owner)
        && next.is_none_or(|next| leases.contains(&next))
}
