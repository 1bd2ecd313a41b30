//! What is left of the quotas that a request counts against.

use std::collections::BTreeSet;

use comity_policy::QuotaUse;
use comity_types::ClassName;

use crate::explain::quote::Quote;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::placement::Placement;
use crate::state::State;

/// The limits that count `spec`, which must be as a submission makes it, with the GPUs of a quote's placements, or at least
/// those that the request needs. A selector may choose any class of the tenant.
#[must_use]
pub fn quota_uses(state: &State, spec: &RequestSpec, quote: Option<&Quote>) -> Vec<QuotaUse> {
    let Some(snapshot) = Snapshot::new(state) else { return Vec::new() };
    let placed = quote.map_or(0, |quote| quote.placements.iter().map(Placement::milli).sum());
    let milli = if placed > 0 { placed } else { spec.least_milli() };
    let classes: Vec<ClassName> = match &spec.gpus.devices {
        DeviceChoice::Class(class) => vec![class.clone()],
        DeviceChoice::Selector(_) => {
            let tenant = snapshot.bundle.tenants.get(spec.tenant.as_str());
            let classes = tenant.into_iter().flat_map(|tenant| &tenant.spec.classes);
            classes.filter_map(|class| ClassName::parse(class, "class").ok()).collect()
        }
    };
    let mut seen = BTreeSet::new();
    let uses = classes.iter().flat_map(|class| snapshot.quota_uses(PolicyQuery::of(spec, class, milli)));
    uses.filter(|it| seen.insert((it.by.clone(), it.period.map(|(_, span)| span)))).collect()
}
