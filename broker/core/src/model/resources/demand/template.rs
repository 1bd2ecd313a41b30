//! The request that a template describes.

use comity_policy::{
    Document, RequestTemplate, TemplateDevices, TemplateIsolation, TemplateNvLink, TemplateShare, TemplateTopology,
};
use comity_types::{ClassName, ClusterId, Delivery, PriorityName, TemplateName, TenantId};

use crate::model::demand::{
    DeviceChoice, GpuDemand, Isolation, Members, Numa, NvLink, Preemptible, RequestSpec, Share, Topology,
};
use crate::model::refusal::Refusal;
use crate::model::time::Millis;

/// The request of a tenant that sets nothing but tenant and origin. Fields that the template leaves open have the defaults
/// of [`RequestSpec::new`], and the GPUs those of [`gpus_of_template`].
///
/// # Errors
/// A name of the template is not one of a class or priority class; a valid bundle has none.
pub fn of_template(
    template: &Document<RequestTemplate>,
    tenant: TenantId,
    origin: ClusterId,
) -> Result<RequestSpec, Refusal> {
    let request = &template.spec.request;
    let priority = request.priority.as_ref();
    Ok(RequestSpec {
        topology: request.topology.into(),
        members: request.members.map(|members| Members { min: members.min, desired: members.desired }),
        spread_donors: request.spread_donors,
        data: request.data.clone(),
        purpose: request.purpose.clone().unwrap_or_default(),
        duration: Millis(request.duration_ms.unwrap_or(0)),
        delivery: request.delivery.unwrap_or(Delivery::Namespace),
        priority: priority.map(|name| PriorityName::parse(name, "spec.priority")).transpose()?,
        preemptible: request.preemptible.map(|terms| Preemptible {
            grace: Millis(terms.grace_ms),
            checkpoint: terms.checkpoint,
            same_gpu_type: terms.same_gpu_type,
        }),
        release_idle: request.release_idle_ms.map(Millis),
        template: Some(TemplateName::parse(&template.name, "spec.template")?),
        ..RequestSpec::new(tenant, origin, gpus_of_template(template)?)
    })
}

/// The GPUs that a template describes: one whole GPU if it sets no amount.
///
/// # Errors
/// The name of its class is not one; a valid bundle has no such name.
pub fn gpus_of_template(template: &Document<RequestTemplate>) -> Result<GpuDemand, Refusal> {
    let gpus = &template.spec.request.gpus;
    Ok(GpuDemand {
        devices: match &gpus.devices {
            TemplateDevices::Class(class) => DeviceChoice::Class(ClassName::parse(class, "spec.gpus.class")?),
            TemplateDevices::Selector(selector) => DeviceChoice::Selector(selector.source().to_owned()),
        },
        share: gpus.amount.as_ref().map_or(Share::Whole, |amount| match &amount.share {
            TemplateShare::Whole => Share::Whole,
            TemplateShare::Milli(milli) => Share::Milli(*milli),
            TemplateShare::MigProfile(profile) => Share::MigProfile(profile.clone()),
            TemplateShare::MemoryMib(mib) => Share::MemoryMib(*mib),
        }),
        count: gpus.amount.as_ref().map_or(1, |amount| amount.count),
        cpu_milli_per_gpu: gpus.cpu_milli_per_gpu.unwrap_or(0),
        memory_mib_per_gpu: gpus.memory_mib_per_gpu.unwrap_or(0),
        isolation: match gpus.isolation {
            None => Isolation::None,
            Some(TemplateIsolation::Memory) => Isolation::Memory,
            Some(TemplateIsolation::Hardware) => Isolation::Hardware,
        },
        gpu_type: None,
    })
}

impl From<TemplateTopology> for Topology {
    fn from(topology: TemplateTopology) -> Self {
        Self {
            same_node: topology.same_node,
            whole_node: topology.whole_node,
            nvlink: match topology.nvlink {
                None => NvLink::None,
                Some(TemplateNvLink::Preferred) => NvLink::Preferred,
                Some(TemplateNvLink::Required) => NvLink::Required,
            },
            numa: if topology.numa_aligned { Numa::Aligned } else { Numa::None },
            rdma_gbits: topology.rdma_gbits,
            spread_nodes: topology.spread_nodes,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::limits;

    /// Whoever writes a template learns of a wrong amount when the policy is checked, not when somebody uses it.
    #[test]
    fn templates_have_the_bounds_of_requests() {
        use comity_policy::limits as of_templates;
        assert_eq!(of_templates::MAX_TEMPLATE_SHARES, limits::MAX_SHARES_PER_REQUEST);
        assert_eq!(of_templates::MIN_TEMPLATE_SHARE_MILLI, limits::MIN_SHARE_MILLI);
        assert_eq!(of_templates::MAX_TEMPLATE_AMOUNT, limits::MAX_AMOUNT);
        assert_eq!(of_templates::MAX_TEMPLATE_RDMA_GBITS, limits::MAX_RDMA_GBITS);
        assert_eq!(of_templates::MIN_TEMPLATE_LEASE_MS, limits::MIN_LEASE_MS);
        assert_eq!(of_templates::MAX_TEMPLATE_LEASE_MS, limits::MAX_LEASE_MS);
        assert_eq!(of_templates::MIN_IDLE_RELEASE_MS, limits::MIN_RELEASE_IDLE_MS);
        assert_eq!(of_templates::MAX_TEMPLATE_GRACE_MS, limits::MAX_GRACE_MS);
    }
}
