//! HAMi, which gives containers parts of GPUs: the annotations and resources that it uses.
//!
//! Its device plugin writes a node's devices on the node, its scheduler writes a pod's devices on the pod, and both count
//! a share by `nvidia.com/gpu`, with `nvidia.com/gpumem` and `nvidia.com/gpucores` for its size. Source: Project-HAMi/HAMi,
//! docs/develop/protocol.md, pkg/device/nvidia, pkg/scheduler/webhook.go; versions 2.3 to 2.10.

mod device_register;
mod hami_additions;
mod hami_share;
mod pod_shares;

pub use device_register::{RegisteredDevice, registered_devices};
pub use hami_additions::hami_additions;
pub use hami_share::HamiShare;
pub use pod_shares::{PodShare, pod_shares};

/// Annotation of a node: its devices.
pub const REGISTER_ANNOTATION: &str = "hami.io/node-nvidia-register";
/// Annotations of a node with the handshake of scheduler and device plugin. Documents and code of HAMi differ.
pub const HANDSHAKE_ANNOTATIONS: [&str; 2] = ["hami.io/node-handshake", "hami.io/node-handshake-nvidia"];
/// Annotation of a node: UUIDs of devices that get no more pods.
pub const CORDON_ANNOTATION: &str = "hami.io/device-cordon";
/// Annotation of a pod: its devices, with memory and cores.
pub const POD_SHARES_ANNOTATION: &str = "hami.io/vgpu-devices-allocated";
/// Annotation of a pod: UUIDs of the devices that it may get.
pub const USE_UUIDS_ANNOTATION: &str = "nvidia.com/use-gpuuuid";
/// Resource: device memory of each share, in MiB.
pub const MEMORY_RESOURCE: &str = "nvidia.com/gpumem";
/// Resource: device memory of each share, in percent.
pub const MEMORY_PERCENT_RESOURCE: &str = "nvidia.com/gpumem-percentage";
/// Resource: compute of each share, in percent of a device.
pub const CORES_RESOURCE: &str = "nvidia.com/gpucores";

/// Longest UUID, as in "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec".
const MAX_UUID_BYTES: usize = 64;
/// Thousandths of a device in one percent.
const PERCENT_MILLI: u32 = 10;
/// A whole device, in thousandths.
const WHOLE_DEVICE_MILLI: u32 = 1_000;

/// Checks a UUID: it becomes part of annotations.
fn check_uuid(uuid: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !uuid.is_empty() && uuid.len() <= MAX_UUID_BYTES && uuid.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!("{uuid:?} is not the UUID of a GPU"))
}
