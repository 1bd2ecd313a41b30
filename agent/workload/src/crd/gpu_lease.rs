//! The `GpuLease` resource.
#![expect(unreachable_pub, reason = "the schema derive copies the type into a function")]
#![expect(clippy::duplicated_attributes, reason = "columns of one type are no repetition")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// A lease as the broker has it. Written by the agent alone; changes by others are undone.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "comity.dev",
    version = "v1alpha1",
    kind = "GpuLease",
    plural = "gpuleases",
    shortname = "gpul",
    category = "comity",
    namespaced,
    status = "GpuLeaseStatus",
    derive = "PartialEq",
    doc = "GPUs borrowed from, or lent to, another cluster; a mirror for reading",
    printcolumn(name = "Side", type_ = "string", json_path = ".spec.side"),
    printcolumn(name = "Peer", type_ = "string", json_path = ".spec.peer"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".spec.gpus"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiresAt"),
    printcolumn(name = "Reclaim", type_ = "string", json_path = ".status.reclaimAt"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.lease.startsWith('lease-')").message("lease must be a lease's id, as in lease-7"))]
pub struct GpuLeaseSpec {
    /// The lease, "lease-N".
    #[schemars(length(max = 64))]
    pub lease: String,
    /// The request that it serves, "req-N".
    pub request: String,
    /// This cluster's side.
    pub side: Side,
    /// The other cluster.
    pub peer: String,
    /// Tenant charged.
    pub tenant: String,
    /// GPUs, or shares of GPUs.
    pub gpus: i64,
    /// Kubernetes resource that counts them on the donor.
    pub resource: String,
    /// VirtualNode or Namespace.
    pub delivery: super::DeliveryKind,
    /// Virtual functions of an RDMA network that its pods may have, and must ask for. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub functions: Vec<Functions>,
}

/// Virtual functions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Functions {
    /// Kubernetes resource that counts them on the donor.
    pub resource: String,
    /// All of them.
    pub count: i64,
    /// Those of each node, or of the node with fewest: as many as the pods of one node may ask for.
    pub per_node: i64,
}

/// A side of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Side {
    /// It borrows.
    Origin,
    /// It lends.
    Donor,
}

/// Status of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuLeaseStatus {
    /// Placed, Connecting, Active, Suspect, Reclaiming, Ending or Ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
    /// When it ends unless renewed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it ends because it is being reclaimed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_at: Option<String>,
    /// When it is released because it is idle, unless work uses it again, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_release_at: Option<String>,
    /// Why the lease waits or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// DonorReady, OriginReady, Active, Reclaiming and Idle.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
