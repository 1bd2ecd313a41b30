//! Minimal request specs.

use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, RequestSpec, Share};
use comity_core::{Millis, Refusal};
use comity_types::{ClassName, ClusterId, TenantId};

/// A request for `gpus` with defaults for everything else.
pub(crate) fn request_spec(tenant: TenantId, origin: ClusterId, gpus: GpuDemand, duration: Millis) -> RequestSpec {
    RequestSpec { duration, ..RequestSpec::new(tenant, origin, gpus) }
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
