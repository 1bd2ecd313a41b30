//! Burst: GPU pods that find no GPU in this cluster run on another cluster's, without a change by their owners.
//!
//! ```text
//! pods, namespaces ─┐
//! desired leases   ─┼─▶ view ─▶ plan (pure) ─▶ actions ─▶ pods: gate removed, pinned, tolerations, events
//! own requests     ─┤                                  └▶ broker: submit, cancel, release
//! local inventory  ─┘
//! ```
//!
//! Cluster and broker hold all state: a pod carries the ids of its request and lease as annotations, a request names
//! its group of pods, and a repeated submission has the same key.
//!
//! It never holds a pod longer than its settings say, never changes a pod of a namespace that did not opt in (except to
//! remove its own gate), and never requests more GPUs than pods wait for.

mod broker;
mod burst_loop;
mod burst_request;
mod checkpoint_store;
mod cluster_watch;
pub(crate) mod facts;
mod gate_review;
mod group;
mod note;
mod patch;
mod plan;
pub(crate) mod pod_client;
mod requests;
pub(crate) mod settings;
mod slots;
mod snapshot;
pub(crate) mod wait_reasons;
mod worker;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;

pub use broker::BrokerRequests;
pub use burst_loop::{BurstContext, run};
pub use burst_request::BurstRequest;
pub use comity_agent_model::lease::target_namespace::{OFFLOAD_LABEL, TENANT_LABEL};
pub use facts::namespace::Rules;
pub(crate) use facts::namespace::duration_ms;
pub use facts::pod::{Owner, PodFacts, PodRef};
pub use facts::requested_stores::RequestedStores;
pub use gate_review::{GATE_WEBHOOK, GateReview, gate_registration};
pub use note::Note;
pub use plan::{BurstAction, Submission, plan};
pub use requests::{RequestError, Requests};
pub use settings::BurstSettings;
pub use snapshot::{BurstSnapshot, EndedRequest, InFlight, LeaseFacts, LeaseStage, PodView, RequestFacts};

/// Label or annotation of a namespace, and annotation of a pod: the requested GPU class.
pub const CLASS: &str = "comity.dev/class";
/// Annotation of a pod: requested priority class.
pub const PRIORITY_CLASS: &str = "comity.dev/priority-class";
/// Annotation of a pod: its lease may be preempted with this notice, as in "10m".
pub const PREEMPTIBLE_GRACE: &str = "comity.dev/preemptible-grace";
/// Annotation of a preemptible pod: "true" if it reports when its work is saved.
pub const CHECKPOINTS: &str = "comity.dev/preemptible-checkpoint";
/// Annotation of such a pod: "true" if what it saved fits only the type of GPUs that it ran on.
pub const SAME_GPU_TYPE: &str = "comity.dev/preemptible-same-gpu-type";
/// Annotation of a pod: the Secret of its namespace by which its containers reach their checkpoints. Absent: the one that
/// requests of the namespace name.
pub const CHECKPOINT_SECRET: &str = "comity.dev/checkpoint-secret";
/// Annotation of a pod: "Preferred" or "Required", whether NVLink joins its GPUs.
pub const NVLINK: &str = "comity.dev/nvlink";
/// Annotation of a pod: "Aligned" for CPU and memory from the NUMA nodes of its GPUs.
pub const NUMA: &str = "comity.dev/numa";
/// Annotation of a pod, or for `nvidia.com/gpu.shared` of a namespace: the part of a GPU that one of its GPUs is, as in
/// "0.25".
pub const GPU_SHARE: &str = "comity.dev/gpu-share";
/// Annotation of a namespace: GPUs that its requests may hold at once.
pub const MAX_GPUS: &str = "comity.dev/max-gpus";
/// Annotation of a namespace: requests that it may have at once.
pub const MAX_REQUESTS: &str = "comity.dev/max-requests";
/// Annotation of a namespace: length of a lease, as in "2h".
pub const DURATION: &str = "comity.dev/duration";
/// Annotation of a namespace: how long an unused lease is kept, as in "60s".
pub const COOLDOWN: &str = "comity.dev/cooldown";
/// The scheduling gate, and the label of pods with it.
pub const GATE: &str = "comity.dev/burst";
/// Annotation of a pod: the request that it waits for.
pub const REQUEST: &str = "comity.dev/request";
/// Annotation of a pod, label and taint of a virtual node: the lease.
pub const LEASE: &str = "comity.dev/lease";
/// Liqo's taint on every virtual node.
pub const LIQO_TAINT: &str = "virtual-node.liqo.io/not-allowed";
