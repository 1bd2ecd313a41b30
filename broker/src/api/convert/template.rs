//! Converts request templates, and fills requests from them.

use comity_core::Refusal;
use comity_core::demand::gpus_of_template;
use comity_policy::{Document, RequestTemplate, TemplateField, show_duration, show_gpus};
use comity_proto::v1;

use crate::api::convert::{data, delivery, request, wiring};

/// Sets each field that the request leaves out to the template's value. Fields that both leave out get their defaults:
/// one whole GPU, delivered as a namespace.
///
/// # Errors
/// A field has another value than the template's, which does not let requests override it. Names of the template that
/// do not parse; a valid bundle has none.
pub fn fill(mut asked: v1::RequestSpec, template: &Document<RequestTemplate>) -> Result<v1::RequestSpec, Refusal> {
    let set = fields_set(template)?;
    let filling = Filling { template };
    let (mut gpus, set_gpus) = (asked.gpus.take().unwrap_or_default(), set.gpus.unwrap_or_default());
    filling.devices(&mut gpus, &set_gpus)?;
    filling.amount(&mut gpus, &set_gpus)?;
    let field = "spec.gpus.isolation";
    filling.fill(TemplateField::Isolation, field, &mut gpus.isolation, &set_gpus.isolation, |it| {
        v1::Isolation::try_from(*it).map_or_else(|_| it.to_string(), |it| word(it.as_str_name(), "ISOLATION_"))
    })?;
    let field = "spec.gpus.cpu_milli_per_gpu";
    filling.fill(TemplateField::CpuPerGpu, field, &mut gpus.cpu_milli_per_gpu, &set_gpus.cpu_milli_per_gpu, text)?;
    let field = "spec.gpus.memory_mib_per_gpu";
    filling.fill(
        TemplateField::MemoryPerGpu,
        field,
        &mut gpus.memory_mib_per_gpu,
        &set_gpus.memory_mib_per_gpu,
        text,
    )?;
    asked.gpus = Some(gpus);

    let (mut topology, set_topology) = (asked.topology.take().unwrap_or_default(), set.topology.unwrap_or_default());
    filling.topology(&mut topology, &set_topology)?;
    asked.topology = Some(topology);

    filling.fill(TemplateField::Members, "spec.members", &mut asked.members, &set.members, |it| {
        it.as_ref().map_or_else(String::new, |it| format!("{}-{}", it.min, it.desired))
    })?;
    asked.spread_donors |= set.spread_donors;
    filling.fill(TemplateField::Data, "spec.data", &mut asked.data, &set.data, |needs| {
        needs.iter().map(|need| format!("{}={}Mi", need.dataset, need.mib)).collect::<Vec<_>>().join(", ")
    })?;
    filling.fill(TemplateField::Purpose, "spec.purpose", &mut asked.purpose, &set.purpose, Clone::clone)?;
    let field = "spec.duration_ms";
    filling.fill(TemplateField::Duration, field, &mut asked.duration_ms, &set.duration_ms, text)?;
    filling.fill(TemplateField::Delivery, "spec.delivery", &mut asked.delivery, &set.delivery, |it| {
        v1::Delivery::try_from(*it).map_or_else(|_| it.to_string(), |it| word(it.as_str_name(), "DELIVERY_"))
    })?;
    filling.fill(TemplateField::Priority, "spec.priority", &mut asked.priority, &set.priority, Clone::clone)?;
    let field = "spec.release_idle_ms";
    filling.fill(TemplateField::ReleaseIdle, field, &mut asked.release_idle_ms, &set.release_idle_ms, text)?;
    filling.fill(TemplateField::Preemptible, "spec.preemptible", &mut asked.preemptible, &set.preemptible, terms)?;
    Ok(with_defaults(asked))
}

/// Sets the fields that neither the request nor its template sets.
fn with_defaults(mut asked: v1::RequestSpec) -> v1::RequestSpec {
    let gpus = asked.gpus.get_or_insert_default();
    if gpus.count == 0 {
        gpus.count = 1;
    }
    gpus.share.get_or_insert(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) });
    if asked.delivery == i32::from(v1::Delivery::Unspecified) {
        asked.delivery = v1::Delivery::Namespace.into();
    }
    asked
}

/// Fills a request field by field.
struct Filling<'t> {
    template: &'t Document<RequestTemplate>,
}

impl Filling<'_> {
    /// Fills one field. The default value of its type stands for a field that is not set.
    fn fill<T: Default + PartialEq + Clone>(
        &self,
        field: TemplateField,
        wire: &str,
        asked: &mut T,
        set: &T,
        show: impl Fn(&T) -> String,
    ) -> Result<(), Refusal> {
        let unset = T::default();
        if *set == unset || asked == set {
            return Ok(());
        }
        if *asked == unset {
            asked.clone_from(set);
            return Ok(());
        }
        self.permit(field, wire, &show(asked), &show(set))
    }

    /// Whether a request may set a field that the template sets to another value.
    fn permit(&self, field: TemplateField, wire: &str, asked: &str, set: &str) -> Result<(), Refusal> {
        if self.template.spec.may_override.contains(&field) {
            return Ok(());
        }
        let name = &self.template.name;
        let may: Vec<String> = self.template.spec.may_override.iter().map(|it| format!("`{it}`")).collect();
        let may = match may.as_slice() {
            [] => "requests may override nothing of it".to_owned(),
            some => format!("requests may override {} of it", some.join(", ")),
        };
        let why = format!("is set by request template `{name}`, to {set}");
        let remedy = format!("leave it out, or submit without spec.template; {may}");
        Err(Refusal::invalid(wire, asked, &why, remedy))
    }

    /// A class replaces a selector, and a selector a class.
    fn devices(&self, asked: &mut v1::GpuDemand, set: &v1::GpuDemand) -> Result<(), Refusal> {
        if asked.class.is_empty() && asked.selector.is_empty() {
            (asked.class, asked.selector) = (set.class.clone(), set.selector.clone());
            return Ok(());
        }
        if (&asked.class, &asked.selector) == (&set.class, &set.selector) {
            return Ok(());
        }
        let shown =
            |gpus: &v1::GpuDemand| if gpus.class.is_empty() { gpus.selector.clone() } else { gpus.class.clone() };
        let wire = if asked.class.is_empty() { "spec.gpus.selector" } else { "spec.gpus.class" };
        self.permit(TemplateField::Class, wire, &shown(asked), &shown(set))
    }

    /// Fills number and size of the shares separately. If the template sets a MIG profile or a memory size, a whole number
    /// is the number of such shares.
    fn amount(&self, asked: &mut v1::GpuDemand, set: &v1::GpuDemand) -> Result<(), Refusal> {
        use v1::share::Kind;
        let kind = |gpus: &v1::GpuDemand| gpus.share.as_ref().and_then(|share| share.kind.clone());
        let has_sized_shares = matches!(kind(set), Some(Kind::MigProfile(_) | Kind::MemoryMib(_)));
        if has_sized_shares && matches!(kind(asked), Some(Kind::Whole(_))) {
            asked.share.clone_from(&set.share);
        }
        if let (Some(asked), Some(set)) = (&asked.share, &set.share)
            && asked != set
        {
            self.permit(TemplateField::Amount, "spec.gpus.share", &share_text(asked), &share_text(set))?;
        }
        if asked.share.is_none() {
            asked.share.clone_from(&set.share);
        }
        self.fill(TemplateField::Amount, "spec.gpus.count", &mut asked.count, &set.count, text)
    }

    fn topology(&self, asked: &mut v1::Topology, set: &v1::Topology) -> Result<(), Refusal> {
        asked.same_node |= set.same_node;
        asked.whole_node |= set.whole_node;
        asked.spread_nodes |= set.spread_nodes;
        if asked.numa == i32::from(v1::Numa::Unspecified) {
            asked.numa = set.numa;
        }
        self.fill(TemplateField::NvLink, "spec.topology.nvlink", &mut asked.nvlink, &set.nvlink, |it| {
            v1::NvLink::try_from(*it).map_or_else(|_| it.to_string(), |it| word(it.as_str_name(), "NV_LINK_"))
        })?;
        let field = "spec.topology.rdma_gbits";
        self.fill(TemplateField::RdmaGbits, field, &mut asked.rdma_gbits, &set.rdma_gbits, text)
    }
}

fn text<T: ToString>(value: &T) -> String {
    value.to_string()
}

/// `virtual-node` for `DELIVERY_VIRTUAL_NODE`.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase().replace('_', "-")
}

fn share_text(share: &v1::Share) -> String {
    match &share.kind {
        None => String::new(),
        Some(v1::share::Kind::Whole(_)) => "whole GPUs".to_owned(),
        Some(v1::share::Kind::Milli(milli)) => format!("{} GPU", show_gpus(u64::from(*milli))),
        Some(v1::share::Kind::MigProfile(profile)) => profile.clone(),
        Some(v1::share::Kind::MemoryMib(memory)) => format!("{memory}Mi"),
    }
}

fn terms(terms: &Option<v1::Preemptible>) -> String {
    let Some(v1::Preemptible { grace_ms, checkpoint, same_gpu_type }) = terms else { return String::new() };
    let words = [(*checkpoint, "checkpoint"), (*same_gpu_type, "same GPU type")];
    let words = words.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| format!(" with {word}"));
    let notice =
        if *grace_ms == 0 { "the donor's notice".to_owned() } else { format!("{} notice", show_duration(*grace_ms)) };
    format!("{notice}{}", words.collect::<String>())
}

/// The fields that a template sets; others are not set.
fn fields_set(template: &Document<RequestTemplate>) -> Result<v1::RequestSpec, Refusal> {
    let set = &template.spec.request;
    let mut gpus = request::demand_to_proto(&gpus_of_template(template)?);
    if set.gpus.amount.is_none() {
        (gpus.share, gpus.count) = (None, 0);
    }
    Ok(v1::RequestSpec {
        gpus: Some(gpus),
        topology: Some(wiring::topology_to_proto(set.topology.into())),
        members: set.members.map(|members| v1::Members { min: members.min, desired: members.desired }),
        spread_donors: set.spread_donors,
        data: data::needs_to_proto(&set.data),
        purpose: set.purpose.clone().unwrap_or_default(),
        duration_ms: set.duration_ms.unwrap_or(0),
        delivery: set.delivery.map_or(0, delivery::to_proto),
        priority: set.priority.clone().unwrap_or_default(),
        release_idle_ms: set.release_idle_ms.unwrap_or(0),
        preemptible: set.preemptible.map(|terms| v1::Preemptible {
            grace_ms: terms.grace_ms,
            checkpoint: terms.checkpoint,
            same_gpu_type: terms.same_gpu_type,
        }),
        template: template.name.clone(),
        ..v1::RequestSpec::default()
    })
}

/// Converts to the API message; `tenants` are those of the caller that are offered it.
///
/// # Errors
/// The name of its class is not one; a valid bundle has no such name.
pub fn to_proto(template: &Document<RequestTemplate>, tenants: Vec<String>) -> Result<v1::RequestTemplate, Refusal> {
    Ok(v1::RequestTemplate {
        name: template.name.clone(),
        title: template.spec.title.clone(),
        description: template.spec.description.clone(),
        category: template.spec.category.clone(),
        spec: Some(fields_set(template)?),
        may_override: template.spec.may_override.iter().map(ToString::to_string).collect(),
        tenants,
    })
}
