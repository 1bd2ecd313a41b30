//! Changes of requests.

use comity_types::{RequestId, RequestState};

use crate::model::reply::Change;
use crate::model::request::Request;
use crate::model::work::WorkType;
use crate::state::gang;
use crate::state::timers::Due;
use crate::state::transition::Transition;

impl Transition<'_> {
    pub(crate) fn insert_request(&mut self, mut request: Request) -> RequestId {
        request.revision = self.revision;
        let records = self.records();
        records.next_request += 1;
        let id = RequestId(records.next_request);
        records.derived.work.add(WorkType::of(&request), 1);
        records.derived.note_request(id, &request, records.policy.as_ref());
        self.audit_submission(id, &request);
        self.records().requests.insert(id, request);
        self.note(Change::Request(id));
        id
    }

    pub(crate) fn change_request(&mut self, id: RequestId, change: impl FnOnce(&mut Request)) {
        let revision = self.revision;
        let records = &mut self.state.records;
        let Some(request) = records.requests.get_mut(&id) else { return };
        let before = request.state;
        change(request);
        request.retry_at = request.retry_at.filter(|_| request.state == RequestState::Queued);
        request.revision = revision;
        let after = request.state;
        records.derived.note_request(id, request, records.policy.as_ref());
        self.check_move(id, before, after, RequestState::may_become);
        self.audit_request_move(id, before);
        self.note(Change::Request(id));
        self.index_parts(id);
    }

    /// Records that an overdue request jumped the queue now.
    pub(crate) fn note_overdue(&mut self) {
        let now = self.now;
        self.records().last_overdue = now;
    }

    /// Updates what depends on all leases of a request: whether more members may join, and when it is released because
    /// it is idle.
    pub(super) fn index_parts(&mut self, id: RequestId) {
        let request = self.state.requests.get(&id);
        let grows = request.is_some_and(|request| gang::joinable_members(self.state, request) > 0);
        let idle_due = request.and_then(|request| gang::idle_due(self.state, request));
        let derived = &mut self.records().derived;
        derived.timers.set(Due::IdleLeases(id), idle_due);
        if grows {
            derived.growing.insert(id);
        } else {
            derived.growing.remove(&id);
        }
    }
}
