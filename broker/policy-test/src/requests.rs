//! Requests of a scenario, as users send them to the broker.

use std::collections::BTreeSet;

use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, Preemptible, RequestSpec, Share, of_template};
use comity_core::{Millis, Refusal, State};
use comity_policy::{AskedRequest, AskedShare, Document, RequestTemplate, TemplateField};
use comity_types::{ClassName, ClusterId, PriorityName, TenantId};

/// The request as the broker fills and converts it.
pub(crate) fn spec(asked: &AskedRequest, state: &State) -> Result<RequestSpec, Refusal> {
    let (tenant, origin) = (TenantId::parse(&asked.tenant, "tenant")?, ClusterId::parse(&asked.origin, "origin")?);
    let template = asked.template.as_deref().map(|name| offered(name, &tenant, state)).transpose()?;
    let start = match template {
        Some(template) => of_template(template, tenant, origin)?,
        None => plain(tenant, origin),
    };
    let spec = with_asked_fields(asked, start.clone())?;
    if let Some(template) = template {
        check_overrides(template, &start, &spec)?;
    }
    Ok(spec)
}

/// A template that the tenant is offered.
fn offered<'s>(name: &str, tenant: &TenantId, state: &'s State) -> Result<&'s Document<RequestTemplate>, Refusal> {
    let bundle = state.policy.as_ref().map(|record| &record.bundle).ok_or_else(Refusal::no_policy)?;
    let mut offered = bundle.templates_offered_to(tenant.as_str());
    offered.find(|template| template.name == name).ok_or_else(|| {
        let remedy = "name one that it is offered, or add the tenant to `offeredTo` of the RequestTemplate";
        Refusal::invalid("template", name, &format!("is not offered to tenant {tenant}"), remedy)
    })
}

/// A request without a template, for GPUs that its scenario says.
fn plain(tenant: TenantId, origin: ClusterId) -> RequestSpec {
    let gpus = GpuDemand {
        devices: DeviceChoice::Selector(String::new()),
        share: Share::Whole,
        count: 1,
        cpu_milli_per_gpu: 0,
        memory_mib_per_gpu: 0,
        isolation: Isolation::None,
        gpu_type: None,
    };
    RequestSpec::new(tenant, origin, gpus)
}

/// Sets the fields that the scenario's request names in `spec`, which has the template's values or the defaults.
fn with_asked_fields(asked: &AskedRequest, mut spec: RequestSpec) -> Result<RequestSpec, Refusal> {
    match (&asked.class, &asked.selector) {
        (Some(class), _) => spec.gpus.devices = DeviceChoice::Class(ClassName::parse(class, "class")?),
        (None, Some(selector)) => spec.gpus.devices = DeviceChoice::Selector(selector.clone()),
        (None, None) => {}
    }
    if let Some((count, share)) = asked.gpus {
        let keeps_size = matches!(spec.gpus.share, Share::MigProfile(_) | Share::MemoryMib(_));
        spec.gpus.count = count;
        match share {
            // As in a request: so many MIG instances or memory shares.
            AskedShare::Whole if keeps_size => {}
            AskedShare::Whole => spec.gpus.share = Share::Whole,
            AskedShare::Milli(milli) => spec.gpus.share = Share::Milli(milli),
        }
    }
    spec.topology.same_node |= asked.same_node;
    spec.topology.whole_node |= asked.whole_node;
    if !asked.data.is_empty() {
        spec.data.clone_from(&asked.data);
    }
    if let Some(purpose) = &asked.purpose {
        spec.purpose.clone_from(purpose);
    }
    if asked.duration_ms > 0 {
        spec.duration = Millis(asked.duration_ms);
    }
    spec.delivery = asked.delivery.unwrap_or(spec.delivery);
    if let Some(name) = &asked.priority {
        spec.priority = Some(PriorityName::parse(name, "priority")?);
    }
    if let Some(terms) = asked.preemptible {
        spec.preemptible =
            Some(Preemptible { grace: Millis(terms.grace_ms), checkpoint: terms.checkpoint, same_gpu_type: false });
    }
    spec.allow_donors = clusters(&asked.donors, "donors")?;
    spec.deny_donors = clusters(&asked.not_donors, "notDonors")?;
    Ok(spec)
}

fn clusters(names: &BTreeSet<String>, field: &str) -> Result<Vec<ClusterId>, Refusal> {
    let parsed: Result<Vec<ClusterId>, _> = names.iter().map(|name| ClusterId::parse(name, field)).collect();
    Ok(parsed?)
}

/// Refuses another value for a field that the template sets and does not let requests override.
fn check_overrides(
    template: &Document<RequestTemplate>,
    start: &RequestSpec,
    asked: &RequestSpec,
) -> Result<(), Refusal> {
    let amounts = |spec: &RequestSpec| (spec.gpus.count, spec.gpus.share.clone());
    let overridden = [
        (TemplateField::Class, "class", start.gpus.devices != asked.gpus.devices),
        (TemplateField::Amount, "gpus", amounts(start) != amounts(asked)),
        (TemplateField::Data, "data", start.data != asked.data),
        (TemplateField::Purpose, "purpose", start.purpose != asked.purpose),
        (TemplateField::Duration, "duration", start.duration != asked.duration),
        (TemplateField::Delivery, "delivery", start.delivery != asked.delivery),
        (TemplateField::Priority, "priority", start.priority != asked.priority),
        (TemplateField::Preemptible, "preemptible", start.preemptible != asked.preemptible),
    ];
    let allowed =
        |field: TemplateField| !template.spec.request.sets(field) || template.spec.may_override.contains(&field);
    match overridden.into_iter().find(|(field, _, differs)| *differs && !allowed(*field)) {
        Some((field, word, _)) => {
            let why = format!("has another value than RequestTemplate `{}` sets", template.name);
            let remedy = format!("leave `{word}` out, or add `{field}` to `mayOverride` of the template");
            Err(Refusal::invalid("template", &template.name, &format!("is overridden: `{word}` {why}"), remedy))
        }
        None => Ok(()),
    }
}
