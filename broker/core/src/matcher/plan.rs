//! The leader's proposal: placements for what waits.

use super::order::in_order;
use super::score::{Score, score};
use super::verdict::{Candidate, ask_donor};
use super::view::View;
use crate::command::ProposedPlacement;
use crate::demand::RequestSpec;
use crate::id::{ClusterId, RequestId};
use crate::request::Request;
use crate::state::State;

/// What to propose. It was made from one revision; `apply` checks each placement again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Revision it was made from.
    pub based_on: u64,
    /// Placements in the order in which requests were served.
    pub placements: Vec<ProposedPlacement>,
    /// Requests that fit nowhere now; [`explain`](super::explain) says why.
    pub unplaced: Vec<RequestId>,
}

/// Places up to `limit` waiting requests.
#[must_use]
pub fn plan(state: &State, limit: usize) -> Plan {
    let mut plan = Plan { based_on: state.revision, ..Plan::default() };
    let Some(mut view) = View::new(state) else { return plan };
    for (id, request) in in_order(state) {
        if plan.placements.len() >= limit {
            break;
        }
        match best(&view, &request.spec, Some(request)) {
            Some(candidate) => {
                let tenant = request.spec.tenant.as_str();
                view.take(tenant, &candidate.class, candidate.agreement.as_deref(), &candidate.placement);
                plan.placements.push(ProposedPlacement { request: id, placement: candidate.placement });
            }
            None => plan.unplaced.push(id),
        }
    }
    plan
}

/// The best placement over all donors, if there is any.
pub(super) fn best(view: &View<'_>, spec: &RequestSpec, request: Option<&Request>) -> Option<Candidate> {
    donors(view.state, spec)
        .filter_map(|donor| ask_donor(view, spec, donor).ok())
        .map(|candidate| (score(view, request, &spec.origin, &candidate.placement), candidate))
        .min_by(|(a, _): &(Score, Candidate), (b, _)| a.cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Clusters that could lend to `spec`: all members but the origin.
pub(super) fn donors<'a>(state: &'a State, spec: &'a RequestSpec) -> impl Iterator<Item = &'a ClusterId> {
    state.clusters.keys().filter(|id| **id != spec.origin)
}
