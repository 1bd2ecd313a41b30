//! Reserves starts for requests that do not fit now.

use comity_types::RequestId;

use crate::model::request::Request;
use crate::scheduler::plan_state::misses::Search;
use crate::scheduler::plan_state::reserved_start::ReservedStart;
use crate::scheduler::planning::Planning;
use crate::scheduler::reserve::Reserved;

impl<'a> Planning<'a, '_> {
    /// Reservations of requests other than `request`.
    pub(crate) fn reserved_for_others(&self, request: &Request) -> impl Iterator<Item = &ReservedStart<'a>> {
        self.plan_state.reserved().iter().filter(move |reserved| !std::ptr::eq(reserved.request, request))
    }

    /// Reserves the earliest start of a request that does not fit now; `None` if no lease end makes room for it.
    pub(crate) fn reserve(&mut self, id: RequestId, request: &'a Request) -> Option<Reserved> {
        let search = Search::Start(id);
        if !self.plan_state.misses.may_search(&search) {
            return None;
        }
        let Some(start) = self.plan_state.earliest_start(&request.spec) else {
            self.plan_state.misses.record(search);
            return None;
        };
        let reserved = Reserved { request: id, at: start.at, donors: start.donors() };
        let starts_by = start.at;
        self.plan_state.reserve(request, start, starts_by);
        Some(reserved)
    }
}
