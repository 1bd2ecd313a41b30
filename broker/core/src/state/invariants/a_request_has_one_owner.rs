use std::collections::BTreeMap;

use comity_types::{LeaseId, LeaseState, RequestState};

use crate::model::request::Request;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const A_REQUEST_HAS_ONE_OWNER: Invariant = Invariant {
    sentence: "a placed request holds exactly the leases that it names and their replacements; others hold none",
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
        let leases: Vec<LeaseId> = held.remove(id).unwrap_or_default();
        let right = match request.state {
            RequestState::Placed => request.lease.is_some() && are_its_chains(state, request, &leases),
            _ => leases.is_empty(),
        };
        if !right {
            violations.push(format!("{id} is {:?} with leases {leases:?}", request.state));
        }
    }
    violations.extend(held.into_keys().map(|id| format!("{id} has a lease but does not exist")));
    violations
}

/// Whether `leases` are exactly the leases that the request names plus their chains of replacements, in which each
/// lease names its predecessor.
fn are_its_chains(state: &State, request: &Request, leases: &[LeaseId]) -> bool {
    let knows = |pair: &[LeaseId]| state.leases.get(&pair[1]).is_some_and(|next| next.moved_from == Some(pair[0]));
    let chains: Vec<Vec<LeaseId>> = request.chains(state).collect();
    let mut own: Vec<LeaseId> = chains.concat();
    own.sort_unstable();
    own == leases && chains.iter().all(|chain| chain.windows(2).all(knows))
}
