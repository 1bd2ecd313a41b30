//! GPUs that drivers for dynamic resource allocation (DRA, `resource.k8s.io/v1`) publish, and claims of them.
//!
//! A driver publishes the devices of a node as ResourceSlices; a pod gets a device through a ResourceClaim. Other than
//! with a device plugin, every device has a name. Source: kubernetes.io, "Dynamic Resource Allocation"; attributes:
//! kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin.

mod claim_choice;
mod claim_facts;
mod device_order;
mod device_pools;
mod device_taint;
mod gpu_class;
mod published_gpu;

pub use claim_choice::{NodeClaim, choose_claims};
pub use claim_facts::{AllocatedDevice, ClaimFacts, LeasedDevice};
pub use device_order::order;
pub use device_pools::DevicePools;
pub use device_taint::{GpuTaint, TaintEffect};
pub use gpu_class::GpuClass;
pub use published_gpu::{PublishedGpu, SliceFacts, UnusableDevice};

/// API group and version.
pub const DRA_GROUP: &str = "resource.k8s.io";
/// Version of the group.
pub const DRA_VERSION: &str = "v1";
/// Most devices of a node that are read.
pub const MAX_NODE_DEVICES: usize = 128;
