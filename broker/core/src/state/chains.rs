//! Replacement chains: the leases of a request that replace one another.

use comity_types::{LeaseId, LeaseState, RequestState};

use crate::model::limits::{MAX_ATTEMPTS, MAX_REPLACED};
use crate::model::request::Request;
use crate::state::State;

impl Request {
    /// The replacement chain of each lease, in the order of [`leases`](Self::leases): the lease, its replacement, the
    /// replacement's replacement if that is being reclaimed too, and so on, with at most [`MAX_REPLACED`] replacements.
    /// No chains if the request is not placed.
    pub fn chains<'s>(&'s self, state: &'s State) -> impl Iterator<Item = Vec<LeaseId>> + use<'s> {
        let next = |id: &LeaseId| state.leases.get(id)?.moved_to;
        let chain = move |id| std::iter::successors(Some(id), next).take(MAX_REPLACED + 1).collect();
        self.leases().filter(|_| self.state == RequestState::Placed).map(chain)
    }

    /// The chain that contains `id`; empty if none does.
    #[must_use]
    pub fn chain_of(&self, state: &State, id: LeaseId) -> Vec<LeaseId> {
        self.chains(state).find(|chain| chain.contains(&id)).unwrap_or_default()
    }

    /// Whether the request's next lease may replace `id`: `id` is being reclaimed, its request does not end with it, and
    /// it has no replacement yet.
    #[must_use]
    pub fn may_replace(&self, state: &State, id: LeaseId) -> bool {
        let lease = state.leases.get(&id);
        let moves = lease.is_some_and(|lease| lease.state == LeaseState::Reclaiming && !lease.ends_its_request());
        let chain = self.chain_of(state, id);
        moves && self.attempts < MAX_ATTEMPTS && chain.last() == Some(&id) && chain.len() <= MAX_REPLACED
    }
}
