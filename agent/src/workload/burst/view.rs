//! All that the planner looks at.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::namespace::Rules;
use super::facts::pod::PodFacts;
use super::facts::wishes::Wishes;
use super::note::Note;

/// A pod, and what this process knows of it beyond the cluster.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Its facts.
    pub facts: PodFacts,
    /// When it was first seen: creation times have whole seconds only.
    pub seen_ms: u64,
}

/// An own request that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// Target namespace.
    pub namespace: String,
    /// Who is accounted.
    pub tenant: String,
    /// GPU class; empty where a selector is given.
    pub class: String,
    /// GPUs, or MIG instances.
    pub gpus: u32,
    /// CPU for each, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Memory for each, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Waits for a donor.
    pub is_queued: bool,
    /// Its lease, once there is one.
    pub lease: Option<String>,
    /// Why it is in its state.
    pub message: String,
    /// Since when pods want less than it asks for.
    pub short_since_ms: Option<u64>,
    /// Until when it is kept though no pod wants it: its lease was reclaimed, and pods that saved themselves are made
    /// again.
    pub kept_until_ms: u64,
    pub(crate) wishes: Wishes,
    /// What this agent wrote into it, if it made it for pods.
    pub purpose: Option<super::group::Purpose>,
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// It could not be served.
    pub has_failed: bool,
    /// Why.
    pub message: String,
    /// When this process learnt it.
    pub at_ms: u64,
}

/// How far a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStage {
    /// Its virtual node is being made.
    Coming,
    /// Pods can run.
    Active,
    /// Its pods run on, and no others are sent there: it is being reclaimed.
    Reclaiming,
    /// It is being taken down.
    Ending,
}

impl LeaseStage {
    /// Of two leases of one request, pods wait for that of the lower rank: a request that moves has both for a while.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Coming => 1,
            Self::Reclaiming => 2,
            Self::Ending => 3,
        }
    }
}

/// An own lease by virtual node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFacts {
    /// The request it serves.
    pub request: String,
    /// Target namespace.
    pub namespace: String,
    /// Who is accounted.
    pub tenant: String,
    /// Who lends.
    pub donor: String,
    /// The virtual node, where it is not called after the lease.
    pub node: Option<String>,
    /// GPU class; empty where a selector was given.
    pub class: String,
    /// Kubernetes resource that counts its GPUs.
    pub resource: String,
    /// How many.
    pub gpus: u32,
    /// CPU for each, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Memory for each, in MiB.
    pub memory_mib_per_gpu: u64,
    /// How far it is.
    pub stage: LeaseStage,
    /// When it ends unless renewed; 0 before it is active.
    pub expires_at_ms: u64,
    /// Until when it is held if it does not become active.
    pub hold_until_ms: u64,
    /// Since when no pod uses it.
    pub idle_since_ms: Option<u64>,
}

/// A submission under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Namespace that it counts for.
    pub namespace: String,
    /// GPUs.
    pub gpus: u32,
    /// UIDs of its pods.
    pub pods: BTreeSet<String>,
}

/// What a pod was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The event.
    pub note: Note,
    /// When.
    pub at_ms: u64,
}

/// A look at cluster and broker.
#[derive(Clone, Debug, Default)]
pub struct BurstView {
    /// Now.
    pub now_ms: u64,
    /// This cluster.
    pub cluster: String,
    /// Pods that ask for GPUs in namespaces that opted in, and pods that our gate holds anywhere.
    pub pods: Vec<PodView>,
    /// Namespaces that opted in, with their rules or what is wrong with them.
    pub namespaces: BTreeMap<String, Result<Rules, String>>,
    /// Own requests that have not ended, by id; `None` while the broker has not said.
    pub requests: Option<BTreeMap<String, RequestFacts>>,
    /// Requests that pods name and that ended.
    pub ended: BTreeMap<String, EndedRequest>,
    /// Own leases by virtual node, by id; `None` while the broker has not said.
    pub leases: Option<BTreeMap<String, LeaseFacts>>,
    /// Free GPUs of this cluster's own nodes, by resource.
    pub local: Vec<BTreeMap<String, u64>>,
    /// Submissions under way.
    pub in_flight: Vec<InFlight>,
    /// Submissions that the broker refused lately, by idempotency key: why, and until when they are not tried again.
    pub refused: BTreeMap<String, (String, u64)>,
    /// What pods were told lately, by UID.
    pub told: BTreeMap<String, Vec<Told>>,
    /// How many pods an owner will make, by its UID, where that is known.
    pub expected: BTreeMap<String, u32>,
    /// Why this cluster can have no virtual nodes, if it cannot: nothing is asked for, and pods stay.
    pub cannot_borrow: Option<String>,
    /// How long pods of one owner are gathered.
    pub debounce_ms: u64,
    /// How long a pod is held at most.
    pub hold_ms: u64,
    /// The least CPU that is asked for with a GPU.
    pub least_cpu_milli: u64,
    /// The least memory that is asked for with a GPU.
    pub least_memory_mib: u64,
}
