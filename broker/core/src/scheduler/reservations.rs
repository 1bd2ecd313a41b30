//! Reserves starts for requests that do not fit now.

use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::id::RequestId;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::planning::Planning;
use crate::scheduler::reserve::{Reserved, Start};
use crate::scheduler::reserved_view::{ReservedStart, ReservedView};

/// Start searches per plan: each examines all held capacity.
pub(crate) const MAX_START_SEARCHES: usize = 16;

impl<'a> Planning<'a, '_> {
    pub(crate) fn reservation_count(&self) -> usize {
        self.reserved.as_ref().map_or(0, |reserved| reserved.starts.len())
    }

    /// Reservations of requests other than `request`.
    pub(crate) fn reserved_for_others(&self, request: &Request) -> impl Iterator<Item = &ReservedStart<'a>> {
        let starts = self.reserved.iter().flat_map(|reserved| &reserved.starts);
        starts.filter(move |reserved| !std::ptr::eq(reserved.request, request))
    }

    /// Reserves the earliest start of a request that does not fit now; `None` if no lease end makes room for it.
    pub(crate) fn reserve(&mut self, id: RequestId, request: &'a Request) -> Option<Reserved> {
        let state = self.snapshot.state;
        if self.start_searches.is_none() {
            self.start_misses.begin(state);
        }
        let start_searches = self.start_searches.get_or_insert(0);
        if *start_searches >= MAX_START_SEARCHES || self.start_misses.requests.contains(&id) {
            return None;
        }
        *start_searches += 1;
        let Some(start) = self.earliest_start(&request.spec) else {
            self.start_misses.requests.insert(id);
            return None;
        };
        let reserved = Reserved { request: id, at: start.at, donors: start.donors() };
        let starts_by = start.at;
        self.reserve_start(request, start, starts_by);
        Some(reserved)
    }

    /// Reserves the capacity of a start that happens at `starts_by` at the latest.
    pub(crate) fn reserve_start(&mut self, request: &'a Request, start: Start, starts_by: Timestamp) {
        for FeasiblePlacement { placement, class, agreement, .. } in &start.found {
            let reserved = self
                .reserved
                .get_or_insert_with(|| ReservedView { snapshot: self.snapshot.clone(), starts: Vec::new() });
            reserved.snapshot.take(request.spec.tenant.as_str(), class, agreement.as_deref(), placement);
            self.index.update_nodes(&reserved.snapshot, placement);
        }
        if let Some(reserved) = &mut self.reserved {
            reserved.starts.push(ReservedStart { request, start, starts_by });
        }
    }
}
