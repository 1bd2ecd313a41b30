//! How leases of a request replace one another.

use crate::model::id::LeaseId;
use crate::model::lease::LeaseState;
use crate::model::limits::{MAX_ATTEMPTS, MAX_REPLACED};
use crate::model::request::{Request, RequestState};
use crate::state::State;

impl Request {
    /// For each of its leases, in the order of [`leases`](Self::leases), how it is replaced: the lease, then the one
    /// that is to replace it, then, where that one is being reclaimed itself, the one that is to replace that, and so
    /// on, [`MAX_REPLACED`] at most. None if the request is not matched.
    pub fn chains<'s>(&'s self, state: &'s State) -> impl Iterator<Item = Vec<LeaseId>> + use<'s> {
        let next = |id: &LeaseId| state.leases.get(id)?.moved_to;
        let chain = move |id| std::iter::successors(Some(id), next).take(MAX_REPLACED + 1).collect();
        self.leases().filter(|_| self.state == RequestState::Matched).map(chain)
    }

    /// The one of its chains in which `id` is; empty if it is in none.
    #[must_use]
    pub fn chain_of(&self, state: &State, id: LeaseId) -> Vec<LeaseId> {
        self.chains(state).find(|chain| chain.contains(&id)).unwrap_or_default()
    }

    /// Whether its next lease may replace `id`: one that is being reclaimed, and that nothing replaces yet.
    #[must_use]
    pub fn may_replace(&self, state: &State, id: LeaseId) -> bool {
        let is_reclaimed = state.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Reclaiming);
        let chain = self.chain_of(state, id);
        is_reclaimed && self.attempts < MAX_ATTEMPTS && chain.last() == Some(&id) && chain.len() <= MAX_REPLACED
    }
}
