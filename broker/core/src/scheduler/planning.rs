//! A plan in progress, and the request that it may treat as waiting.

use comity_types::RequestId;

use crate::feasibility::demand_key::DemandKey;
use crate::feasibility::donors::spread::Found;
use crate::model::request::Request;
use crate::scheduler::order::Hypothetical;
use crate::scheduler::plan_state::PlanState;
use crate::scheduler::plan_state::misses::Search;
use crate::state::State;

/// A plan in progress.
pub(crate) struct Planning<'a, 'p> {
    pub(crate) plan_state: PlanState<'a, 'p>,
    /// A request treated as if it were waiting.
    pub(crate) hypothetical: Option<&'a Hypothetical<'a>>,
    pub(crate) last_grown: &'p mut Option<RequestId>,
}

impl<'a> Planning<'a, '_> {
    /// The state that the plan is based on.
    pub(crate) fn state(&self) -> &'a State {
        self.plan_state.snapshot().state
    }

    /// Whether a request has waited at least `times` × `reserve_after`.
    pub(crate) fn has_waited(&self, request: &Request, times: u64) -> bool {
        let state = self.state();
        state.log_time.since(request.waits_since()).0 >= state.settings().reserve_after.0.saturating_mul(times)
    }

    /// The best placement of a request now. Fails at once if its demand failed before in this plan.
    pub(crate) fn find_unless_failed(&mut self, request: &'a Request) -> Option<Found> {
        let search = Search::Place(DemandKey::of(&request.spec));
        if !self.plan_state.misses.may_search(&search) {
            return None;
        }
        let found = self.plan_state.find(&request.spec, Some(request));
        if found.is_none() {
            self.plan_state.misses.record(search);
        }
        found
    }
}
