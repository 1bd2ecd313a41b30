//! Requests that borrow stand back: within a plan, they are served after the waiting requests that need the same quota and
//! are within their own. Otherwise they would be placed and soon be reclaimed.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use comity_policy::WaitingClaim;
use comity_types::{ClassName, RequestId};

use crate::feasibility::donors::spread::Found;
use crate::feasibility::reclaim_checks::borrowed_quota::classes_of;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::request::Request;
use crate::scheduler::order::Hypothetical;

/// Waiting requests that are looked at; the oldest come first.
const MAX_WAITING: usize = 1_000;

/// The requests that a plan has not tried yet, as far as cohorts count them, and those that stand back for them.
pub(crate) struct StandBack<'a> {
    hypothetical: Option<&'a Hypothetical<'a>>,
    /// Read once a request borrows.
    waiting: OnceCell<Vec<(RequestId, &'a Request, ClassName)>>,
    tried: BTreeSet<RequestId>,
    standing_back: Vec<(RequestId, &'a Request)>,
}

impl<'a> StandBack<'a> {
    pub(crate) fn new(hypothetical: Option<&'a Hypothetical<'a>>) -> Self {
        Self { hypothetical, waiting: OnceCell::new(), tried: BTreeSet::new(), standing_back: Vec::new() }
    }

    /// Whether a request, for which `found` is a place, stands back for others. Notes that it was tried.
    pub(crate) fn defers(
        &mut self,
        snapshot: &Snapshot<'a>,
        id: RequestId,
        request: &'a Request,
        found: Option<&Found>,
    ) -> bool {
        if !snapshot.bundle.has_cohorts() {
            return false;
        }
        self.tried.insert(id);
        let Some(found) = found.filter(|_| snapshot.bundle.is_in_cohort(request.spec.tenant.as_str())) else {
            return false;
        };
        let waiting = self.waiting.get_or_init(|| waiting(snapshot, self.hypothetical));
        let untried = waiting.iter().filter(|(other, ..)| !self.tried.contains(other));
        let claims: Vec<WaitingClaim<'_>> = untried
            .map(|(_, other, class)| WaitingClaim {
                tenant: other.spec.tenant.as_str(),
                class: class.as_str(),
                gpus_milli: other.spec.least_milli(),
            })
            .collect();
        let defers = !claims.is_empty()
            && found.iter().any(|part| {
                let ask = PolicyQuery::of(&request.spec, &part.class, part.placement.milli());
                snapshot.borrows_what_others_need(ask, &claims)
            });
        if defers {
            self.standing_back.push((id, request));
        }
        defers
    }

    /// The requests that stood back, in the order of the queue.
    pub(crate) fn into_requests(self) -> Vec<(RequestId, &'a Request)> {
        self.standing_back
    }
}

/// Waiting requests of tenants whose quotas are in cohorts.
fn waiting<'a>(
    snapshot: &Snapshot<'a>,
    hypothetical: Option<&'a Hypothetical<'a>>,
) -> Vec<(RequestId, &'a Request, ClassName)> {
    let (state, bundle) = (snapshot.state, snapshot.bundle);
    let queued = state.derived.queue.by_age.iter().filter_map(|(_, id)| Some((*id, state.requests.get(id)?)));
    let all = queued.chain(hypothetical.map(|it| (it.id, it.request)));
    let counted = all.filter(|(_, request)| bundle.is_in_cohort(request.spec.tenant.as_str()));
    let with_class = counted.filter_map(|(id, request)| {
        let class = classes_of(snapshot, &request.spec).into_iter().next()?;
        Some((id, request, class))
    });
    with_class.take(MAX_WAITING).collect()
}
