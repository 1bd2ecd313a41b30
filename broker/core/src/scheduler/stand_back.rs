//! Requests that borrow stand back: within a plan, they are served after the waiting requests that need the same quota and
//! are within their own. Otherwise they would be placed and soon be reclaimed.

use std::collections::BTreeMap;

use comity_policy::WaitingClaims;
use comity_types::{ClassName, RequestId};

use crate::feasibility::donors::spread::Found;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::request::Request;
use crate::scheduler::order::Hypothetical;

/// What a plan has yet to try, as cohorts count it, and the requests that stand back for it.
#[derive(Clone)]
pub(crate) struct StandBack<'a> {
    /// `None` without cohorts.
    untried: Option<WaitingClaims<'a>>,
    standing_back: Vec<(RequestId, &'a Request)>,
}

impl<'a> StandBack<'a> {
    /// Before a plan tries the requests of the queue but those in `served`.
    pub(crate) fn new(
        snapshot: &Snapshot<'a>,
        hypothetical: Option<&'a Hypothetical<'a>>,
        served: &[RequestId],
    ) -> Self {
        let state = snapshot.state;
        let untried = snapshot.bundle.has_cohorts().then(|| {
            let queued = state.derived.queue.by_age.iter().filter(|(_, id)| !served.contains(id));
            let queued = queued.filter_map(|(_, id)| state.requests.get(id));
            let mut claims = WaitingClaims::default();
            for request in queued.chain(hypothetical.map(|it| it.request)) {
                if let Some(class) = snapshot.cohort_class_of(&request.spec) {
                    claims.add(request.spec.tenant.as_str(), class, request.spec.least_milli());
                }
            }
            claims
        });
        Self { untried, standing_back: Vec::new() }
    }

    /// Whether a request, for which `found` is a place, stands back for others. Counts it as tried.
    pub(crate) fn defers(
        &mut self,
        snapshot: &Snapshot<'a>,
        id: RequestId,
        request: &'a Request,
        found: Option<&Found>,
    ) -> bool {
        let counts = self.count_tried(snapshot, request);
        let defers = counts && found.is_some_and(|found| self.others_need(snapshot, request, found));
        if defers {
            self.standing_back.push((id, request));
        }
        defers
    }

    /// Counts a request as tried. Returns false if cohorts do not count it.
    pub(crate) fn count_tried(&mut self, snapshot: &Snapshot<'a>, request: &'a Request) -> bool {
        let Some(untried) = &mut self.untried else { return false };
        let Some(class) = snapshot.cohort_class_of(&request.spec) else { return false };
        untried.remove(request.spec.tenant.as_str(), class, request.spec.least_milli());
        true
    }

    /// Whether a request would borrow at `found` what others need that are within their quotas.
    pub(crate) fn others_need(&self, snapshot: &Snapshot<'_>, request: &Request, found: &Found) -> bool {
        let Some(untried) = &self.untried else { return false };
        let mut by_class: BTreeMap<&ClassName, u64> = BTreeMap::new();
        for part in found {
            let milli = by_class.entry(&part.class).or_default();
            *milli = milli.saturating_add(part.placement.milli());
        }
        by_class.into_iter().any(|(class, milli)| {
            snapshot.borrows_what_others_need(PolicyQuery::of(&request.spec, class, milli), untried)
        })
    }

    /// The requests that stood back, in the order of the queue.
    pub(crate) fn into_requests(self) -> Vec<(RequestId, &'a Request)> {
        self.standing_back
    }
}
