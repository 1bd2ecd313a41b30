use std::collections::BTreeMap;

use super::Invariant;
use crate::id::LeaseId;
use crate::lease::LeaseState;
use crate::request::{Request, RequestState};
use crate::state::State;

pub(super) const INVARIANT: Invariant = Invariant {
    sentence: "a matched request has exactly one lease that does not end, besides those that are to replace it one after the other, and only then",
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
            RequestState::Matched => are_a_chain(state, request, &leases),
            _ => leases.is_empty(),
        };
        if !right {
            violations.push(format!("{id} is {:?} with leases {leases:?}", request.state));
        }
    }
    violations.extend(held.into_keys().map(|id| format!("{id} has a lease and does not exist")));
    violations
}

/// Whether those are the request's lease and what is to replace it, and that, which each knows of the one before.
fn are_a_chain(state: &State, request: &Request, leases: &[LeaseId]) -> bool {
    let chain = request.chain(state);
    let knows = |pair: &[LeaseId]| state.leases.get(&pair[1]).is_some_and(|next| next.moved_from == Some(pair[0]));
    let mut sorted = chain.clone();
    sorted.sort_unstable();
    !chain.is_empty() && sorted == leases && chain.windows(2).all(knows)
}
