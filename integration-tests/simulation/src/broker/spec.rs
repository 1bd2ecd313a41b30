//! Minimal request specs.

use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, RequestSpec, Share, Topology};
use comity_core::{Millis, Refusal};
use comity_types::{ClassName, ClusterId, Delivery, TenantId};

/// A request for `gpus` with defaults for everything else.
pub(crate) fn request_spec(tenant: TenantId, origin: ClusterId, gpus: GpuDemand, duration: Millis) -> RequestSpec {
    RequestSpec {
        tenant,
        origin,
        gpus,
        topology: Topology::default(),
        members: None,
        spread_donors: false,
        data: Vec::new(),
        duration,
        allow_donors: Vec::new(),
        deny_donors: Vec::new(),
        delivery: Delivery::Namespace,
        target_namespace: "comity-leases".to_owned(),
        purpose: String::new(),
        priority: None,
        not_before: None,
        start_by: None,
        preemptible: None,
        release_idle: None,
        checkpoint_secret: None,
        template: None,
        submitted_by: String::new(),
    }
}

/// A demand for whole GPUs of the class `gpu`.
///
/// # Errors
/// Never: the class name is valid.
pub(crate) fn whole_gpus(count: u32, cpu_milli_per_gpu: u64, memory_mib_per_gpu: u64) -> Result<GpuDemand, Refusal> {
    Ok(GpuDemand {
        devices: DeviceChoice::Class(ClassName::parse("gpu", "class")?),
        share: Share::Whole,
        count,
        cpu_milli_per_gpu,
        memory_mib_per_gpu,
        isolation: Isolation::None,
        gpu_type: None,
    })
}
