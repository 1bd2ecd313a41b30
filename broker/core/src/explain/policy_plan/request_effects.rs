//! Waiting requests that a bundle would make possible or impossible.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{BorrowFacts, Bundle, InUse};
use comity_types::{ClassName, ClusterId, RequestId, TenantId};

use super::{Effects, Planned};
use crate::explain::explanation::{explain, for_one_donor};
use crate::explain::rule_warnings::classes_asked;
use crate::feasibility::check::check_terms;
use crate::feasibility::donors::promise::donors;
use crate::model::demand::RequestSpec;
use crate::model::proposal::PlacementKind;
use crate::scheduler::plan::Plan;
use crate::state::State;
use crate::state::notice::schedule_notice;

/// Most waiting requests that are examined, in the order of submission: each may ask every donor.
const MAX_REQUESTS_EXAMINED: usize = 5_000;

/// A waiting request whose prospects would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestEffect {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// What becomes of it.
    pub prospect: Prospect,
}

/// What becomes of a waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Policy alone would keep it from every donor, for this reason.
    Denied(String),
    /// Policy would no longer keep it from every donor.
    Allowed,
    /// It would start at once, at these donors.
    Starts(Vec<ClusterId>),
    /// It would no longer start now, for this reason.
    Waits(String),
}

/// The waiting requests whose prospects would change, in the order of submission.
pub(super) fn request_effects(before: &Planned<'_>, after: &Planned<'_>) -> Effects<RequestEffect> {
    let started = [before, after].map(|planned| starts(&planned.plan));
    let effects = before.state.queued().take(MAX_REQUESTS_EXAMINED).filter_map(|(id, request)| {
        let spec = &request.spec;
        let denied = denied_everywhere(after.state, spec);
        let changes = denied.is_some() != denied_everywhere(before.state, spec).is_some();
        let prospect = match (denied, [&started[0], &started[1]].map(|started| started.get(&id))) {
            (Some(reason), _) if changes => Prospect::Denied(reason),
            (_, [None, Some(donors)]) => Prospect::Starts(donors.iter().cloned().collect()),
            (_, [Some(_), None]) => Prospect::Waits(explain(after.state, spec).summary),
            (None, _) if changes => Prospect::Allowed,
            _ => return None,
        };
        Some(RequestEffect { request: id, tenant: spec.tenant.clone(), prospect })
    });
    let unexamined = before.state.queued_len().saturating_sub(MAX_REQUESTS_EXAMINED);
    Effects { unexamined, ..effects.collect() }
}

/// The waiting requests that a plan places, and where.
pub(super) fn starts(plan: &Plan) -> BTreeMap<RequestId, BTreeSet<ClusterId>> {
    let served = plan.placements.iter().filter(|placed| placed.kind == PlacementKind::Serve);
    served.map(|placed| (placed.request, placed.parts().map(|part| part.donor.clone()).collect())).collect()
}

/// Why policy keeps the request from every donor, whatever capacity is free; `None` if it does not.
fn denied_everywhere(state: &State, spec: &RequestSpec) -> Option<String> {
    let Some(record) = &state.policy else { return Some("no policy bundle is in force".to_owned()) };
    if let Err(refusal) = check_terms(&record.bundle, spec) {
        return Some(refusal.reason);
    }
    let asked = for_one_donor(spec);
    let mut first = None;
    for donor in donors(state, spec).filter(|donor| spec.allows(donor)) {
        for class in classes_asked(state, donor, spec) {
            match denial(state, &record.bundle, &asked, donor, &class) {
                None => return None,
                Some(reason) => first = first.or(Some(reason)),
            }
        }
    }
    first
}

/// Why the terms deny a lease even if nothing is in use; waiting for the begin of an agreement may help.
fn denial(state: &State, bundle: &Bundle, spec: &RequestSpec, donor: &ClusterId, class: &ClassName) -> Option<String> {
    let decision = bundle.may_borrow(&BorrowFacts {
        tenant: spec.tenant.as_str(),
        user: &spec.submitted_by,
        origin_cluster: spec.origin.as_str(),
        donor_cluster: donor.as_str(),
        class: class.as_str(),
        gpus_milli: spec.least_milli(),
        beside_milli: 0,
        delivery: spec.delivery,
        duration_ms: spec.duration.0,
        notice_ms: spec.preemptible.map(|_| schedule_notice(bundle, donor).0),
        now_ms: state.log_time.0,
        data: &spec.data,
        purpose: &spec.purpose,
        in_use: InUse::default(),
    });
    let denial = decision.denial().filter(|denial| !denial.code.may_pass())?;
    Some(denial.message.clone())
}
