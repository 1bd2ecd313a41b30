//! When and where a request could start, for people: under the ends of leases, beside what is reserved for another request,
//! within its own start window, and when what is quarantined comes back.

use comity_policy::LeaseUse;

use super::explain::Explanation;
use super::plan::{Plan, Run};
use super::reserve::{earliest, end_of_start};
use super::view::{Held, View};
use crate::demand::RequestSpec;
use crate::id::ClusterId;
use crate::time::Timestamp;

/// When, and at which donors.
pub(super) type Outlook = (Timestamp, Vec<ClusterId>);

/// The earliest start of `spec` in `view`, where `held` ends: of what `plan` has reserved it takes nothing before that has
/// ended too. `None`: no end makes room.
pub(super) fn beside_reserved<'p>(
    run: &'p Run<'_, '_>,
    plan: &Plan,
    view: &View<'p>,
    mut held: Vec<Held<'p>>,
    spec: &RequestSpec,
) -> Option<Outlook> {
    let mut view = view.clone();
    let state = view.state;
    let other = plan.reserved.as_ref().and_then(|reserved| Some((reserved, state.requests.get(&reserved.request)?)));
    if let Some((reserved, request)) = other {
        let tenant = request.spec.tenant.as_str();
        let institution = view.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        for part in run.reserved(reserved) {
            view.take(tenant, &part.class, part.agreement.as_deref(), &part.placement);
            let counts = LeaseUse {
                tenant,
                institution,
                donor: part.placement.donor.as_str(),
                class: part.class.as_str(),
                agreement: part.agreement.as_deref(),
                gpus_milli: part.placement.milli(),
            };
            let end = end_of_start(state, reserved.at, request.spec.duration);
            held.push(Held { end, counts, placement: &part.placement });
        }
    }
    held.sort_by_key(|held| held.end);
    earliest(&view, &held, spec).map(|start| (start.at, start.donors()))
}

/// The same as the request may have it: never before its start window opens, and sooner where a quarantine ends before leases
/// do.
pub(super) fn as_asked(spec: &RequestSpec, explanation: &Explanation, found: Option<Outlook>) -> Option<Outlook> {
    let verdicts = explanation.donors.iter().filter(|_| !spec.spread_donors);
    let back = verdicts.filter_map(|it| Some((it.obstacle.as_ref()?.until?, it.donor.clone()))).min();
    let back = back.map(|(at, donor)| (at, vec![donor]));
    let sooner = match (found, back) {
        (Some(found), Some(back)) => Some(if back.0 < found.0 { back } else { found }),
        (found, back) => found.or(back),
    };
    sooner.map(|(at, donors)| (at.max(spec.not_before.unwrap_or_default()), donors))
}
