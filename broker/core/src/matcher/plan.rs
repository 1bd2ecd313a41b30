//! The leader's proposal: placements for what waits.

use super::fit::Wanted;
use super::order::in_order;
use super::packs::Packs;
use super::score::{Score, score};
use super::verdict::{Candidate, ask_donor};
use super::view::View;
use crate::command::ProposedPlacement;
use crate::demand::RequestSpec;
use crate::id::{ClusterId, NodeId, RequestId};
use crate::request::Request;
use crate::state::State;
use crate::work::WorkMix;

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

/// Plans again and again: what it knows of donors' nodes is kept from one plan to the next.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    packs: Packs,
}

impl Planner {
    /// A planner that expects `work` besides what the state holds: what is known from before, or of work that is no request.
    #[must_use]
    pub fn expecting(work: WorkMix) -> Self {
        Self { packs: Packs::expecting(work) }
    }

    /// Places up to `limit` waiting requests.
    #[must_use]
    pub fn plan(&mut self, state: &State, limit: usize) -> Plan {
        let mut plan = Plan { based_on: state.revision, ..Plan::default() };
        let Some(mut view) = View::new(state) else { return plan };
        self.packs.begin(&view);
        for (id, request) in in_order(state) {
            if plan.placements.len() >= limit {
                break;
            }
            match best(&view, &mut self.packs, &request.spec, Some(request)) {
                Some(candidate) => {
                    let tenant = request.spec.tenant.as_str();
                    view.take(tenant, &candidate.class, candidate.agreement.as_deref(), &candidate.placement);
                    self.packs.take(&view, &candidate.placement);
                    plan.placements.push(ProposedPlacement { request: id, placement: candidate.placement });
                }
                None => plan.unplaced.push(id),
            }
        }
        plan
    }

    /// The node of `donor` on which work without GPUs, local to it, would be least in the way of what is expected: CPU in
    /// thousandths of a core, main memory in MiB. `None` if it fits on none.
    #[must_use]
    pub fn advise(&mut self, state: &State, donor: &ClusterId, cpu_milli: u64, memory_mib: u64) -> Option<NodeId> {
        let view = View::new(state)?;
        self.packs.begin(&view);
        self.packs.advise(&view, donor, cpu_milli, memory_mib)
    }

    /// Forgets what is known of nodes: what was planned did not hold.
    pub fn forget(&mut self) {
        self.packs.forget();
    }
}

/// Places up to `limit` waiting requests, once.
#[must_use]
pub fn plan(state: &State, limit: usize) -> Plan {
    Planner::default().plan(state, limit)
}

/// The best placement over all donors, if there is any.
pub(super) fn best(
    view: &View<'_>,
    packs: &mut Packs,
    spec: &RequestSpec,
    request: Option<&Request>,
) -> Option<Candidate> {
    let mut fitter = |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| packs.fit(view, donor, wanted);
    donors(view.state, spec)
        .filter_map(|donor| ask_donor(view, spec, donor, &mut fitter).ok())
        .map(|candidate| (score(view, request, &spec.origin, &candidate), candidate))
        .min_by(|(a, _): &(Score, Candidate), (b, _)| a.cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Clusters that could lend to `spec`: all members but the origin.
pub(super) fn donors<'a>(state: &'a State, spec: &'a RequestSpec) -> impl Iterator<Item = &'a ClusterId> {
    state.clusters.keys().filter(|id| **id != spec.origin)
}
