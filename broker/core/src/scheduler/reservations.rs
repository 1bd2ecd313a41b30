//! Reserves the start of requests that do not fit now.

use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::id::RequestId;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::planning::Planning;
use crate::scheduler::reserve::{Reserved, Start};
use crate::scheduler::reserved_view::{ReservedStart, ReservedView};

/// Requests for which one plan looks for a start before it gives up: each takes a look at all that is held.
pub(crate) const MAX_START_SEARCHES: usize = 16;

impl<'a> Planning<'a, '_> {
    /// For how many something is kept free.
    pub(crate) fn reservations(&self) -> usize {
        self.reserved.as_ref().map_or(0, |reserved| reserved.starts.len())
    }

    /// What is kept free for others than `request`.
    pub(crate) fn reserved_for_others(&self, request: &Request) -> impl Iterator<Item = &ReservedStart<'a>> {
        let kept = self.reserved.iter().flat_map(|reserved| &reserved.starts);
        kept.filter(move |kept| !std::ptr::eq(kept.request, request))
    }

    /// Reserves the earliest start of a request that does not fit now; `None` if no end makes room for it.
    pub(crate) fn reserve(&mut self, id: RequestId, request: &'a Request) -> Option<Reserved> {
        let state = self.snapshot.state;
        if self.looked_at.is_none() {
            self.start_misses.begin(state);
        }
        let looked_at = self.looked_at.get_or_insert(0);
        if *looked_at >= MAX_START_SEARCHES || self.start_misses.requests.contains(&id) {
            return None;
        }
        *looked_at += 1;
        let Some(start) = self.earliest(&request.spec) else {
            self.start_misses.requests.insert(id);
            return None;
        };
        let reserved = Reserved { request: id, at: start.at, donors: start.donors() };
        let begins = start.at;
        self.keep_free(request, start, begins);
        Some(reserved)
    }

    /// Keeps what a request starts on later, at `begins` at the latest, free of those who stay longer.
    pub(crate) fn keep_free(&mut self, request: &'a Request, start: Start, begins: Timestamp) {
        for FeasiblePlacement { placement, class, agreement, .. } in &start.found {
            let reserved = self
                .reserved
                .get_or_insert_with(|| ReservedView { snapshot: self.snapshot.clone(), starts: Vec::new() });
            reserved.snapshot.take(request.spec.tenant.as_str(), class, agreement.as_deref(), placement);
            self.index.update_nodes(&reserved.snapshot, placement);
        }
        if let Some(reserved) = &mut self.reserved {
            reserved.starts.push(ReservedStart { request, start, begins });
        }
    }
}
