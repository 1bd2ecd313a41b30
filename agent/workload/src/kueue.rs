//! Kueue: its ProvisioningRequests of class `offload.comity.dev` become `GpuRequest`s, and their pods start on the leases.
//!
//! ```text
//! Job (suspended) ─▶ Workload ─▶ ProvisioningRequest ─▶ GpuRequest ─▶ request, lease, virtual node
//!       ▲                                ▲                  │
//!       └── Kueue unsuspends it ─────────┴── conditions ◀───┘
//! ```
//!
//! The `GpuRequest` has the name of the ProvisioningRequest, which owns it: when Kueue deletes that, the lease ends. The
//! conditions are those of the cluster autoscaler's API, as Kueue 0.15 reads them:
//! <https://kueue.sigs.k8s.io/docs/concepts/admission_check/provisioning_request/>.

mod owner_workload;
mod pods_demand;
mod progress;
mod provisioner;
mod provisioning_request;

pub(crate) use provisioner::Provisioner;

/// The class of ProvisioningRequests that the agent serves.
const PROVISIONING_CLASS: &str = "offload.comity.dev";
