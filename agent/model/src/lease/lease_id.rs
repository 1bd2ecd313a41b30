//! Names made from the id of a lease.

use comity_types::LeaseId;
pub use comity_types::namespace_name;

/// Label of every object made for a lease; its value is the lease's id.
pub const LEASE_LABEL: &str = "comity.dev/lease";
/// Label of the namespaces of leases on several nodes, with the value "several".
pub const LEASE_NODES_LABEL: &str = "comity.dev/lease-nodes";
/// Annotation of a lease's namespace: the resource that counts its GPUs.
pub const GPU_RESOURCE_ANNOTATION: &str = "comity.dev/gpu-resource";
/// Annotation of a lease's namespace: the resources of its devices, separated by commas. Its pods request no others.
pub const DEVICES_ANNOTATION: &str = "comity.dev/devices";

/// The lease of such a namespace; `None` for other names.
#[must_use]
pub fn lease_of_namespace(namespace: &str) -> Option<LeaseId> {
    let lease = namespace.strip_prefix("comity-")?.parse().ok()?;
    (namespace_name(lease) == namespace).then_some(lease)
}
