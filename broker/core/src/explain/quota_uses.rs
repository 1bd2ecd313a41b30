//! What is left of the quotas that a request counts against.

use std::collections::BTreeSet;

use comity_policy::{GpuTimeFacts, InUse, QuotaUse};

use crate::explain::quote::Quote;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::RequestSpec;
use crate::model::placement::Placement;
use crate::state::State;

/// The limits that count leases of a tenant, as they stand for a user.
#[must_use]
pub fn tenant_quotas(state: &State, tenant: &str, user: &str) -> Vec<QuotaUse> {
    let Some(record) = &state.policy else { return Vec::new() };
    let institution = record.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
    let now_ms = state.log_time.0;
    let gpu_time = GpuTimeFacts { booked: state.gpu_time_booked(), gpus_milli: 0, until_ms: now_ms, most_ms: 0 };
    let in_use = InUse { gpu_time: Some(gpu_time), ..state.usage().in_use(tenant, institution, user, "") };
    record.bundle.tenant_quotas(tenant, user, now_ms, in_use)
}

/// The limits that count `spec`, which must be as a submission makes it, with the GPUs of a quote's placements, or at least
/// those that the request needs. A selector may choose any class of the tenant.
#[must_use]
pub fn quota_uses(state: &State, spec: &RequestSpec, quote: Option<&Quote>) -> Vec<QuotaUse> {
    let Some(snapshot) = Snapshot::new(state) else { return Vec::new() };
    let placed = quote.map_or(0, |quote| quote.placements.iter().map(Placement::milli).sum());
    let milli = if placed > 0 { placed } else { spec.least_milli() };
    let classes = snapshot.classes_of(spec);
    let mut seen = BTreeSet::new();
    let uses = classes.iter().flat_map(|class| snapshot.quota_uses(PolicyQuery::of(spec, class, milli)));
    uses.filter(|it| seen.insert((it.by.clone(), it.period.map(|(_, span)| span)))).collect()
}
