//! Input of the burst plan.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_model::gpu_demand::Share;

use super::facts::namespace::Rules;
use super::facts::pod::PodFacts;
use super::facts::pod_options::PodOptions;
use super::facts::requested_stores::RequestedStores;
use super::note::Note;

/// A pod, with when this process first saw it.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Its facts.
    pub facts: PodFacts,
    /// First seen, in milliseconds since 1970; creation times have whole seconds only.
    pub seen_ms: u64,
}

/// An own request that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// Target namespace.
    pub namespace: String,
    /// Tenant charged.
    pub tenant: String,
    /// GPU class; empty where a selector is given.
    pub class: String,
    /// GPUs, or MIG instances.
    pub gpus: u32,
    /// How much of a GPU each is.
    pub share: Option<Share>,
    /// CPU for each, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Memory for each, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Whether it waits for a donor.
    pub is_queued: bool,
    /// Its lease, once there is one.
    pub lease: Option<String>,
    /// Reason of its state.
    pub message: String,
    /// Since when its pods need fewer GPUs than it has.
    pub short_since_ms: Option<u64>,
    /// Until when it is kept without pods: its lease was reclaimed, and controllers make the saved pods again.
    pub kept_until_ms: u64,
    pub(crate) options: PodOptions,
    /// Whether this cluster's agent submitted it, for a burst or a GpuRequest.
    pub is_submitted_here: bool,
    /// Its note, if burst made it.
    pub note: Option<super::group::BurstNote>,
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Whether it failed.
    pub has_failed: bool,
    /// Why it ended.
    pub message: String,
    /// When this process learned of it.
    pub at_ms: u64,
}

/// Stage of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStage {
    /// Its virtual node is being made.
    Coming,
    /// Pods can run.
    Active,
    /// It is being reclaimed: running pods go on, and no others are sent there.
    Reclaiming,
    /// It is being taken down.
    Ending,
}

impl LeaseStage {
    /// Of two leases of a request that moves, pods wait for the one with the lower rank.
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
    /// Tenant charged.
    pub tenant: String,
    /// Lending cluster.
    pub donor: String,
    /// Name of the virtual node, if it differs from the lease's id.
    pub node: Option<String>,
    /// GPU class; empty where a selector was given.
    pub class: String,
    /// Kubernetes resource that counts its GPUs.
    pub resource: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// How much of a GPU each is.
    pub share: Option<Share>,
    /// CPU for each, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Memory for each, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Its stage.
    pub stage: LeaseStage,
    /// When it ends unless renewed; 0 before it is active.
    pub expires_at_ms: u64,
    /// Length of one term, in milliseconds.
    pub term_ms: u64,
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

/// An event that was written on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenNote {
    /// The event.
    pub note: Note,
    /// When.
    pub at_ms: u64,
}

/// Cluster and broker at one time.
#[derive(Clone, Debug, Default)]
pub struct BurstSnapshot {
    /// Now.
    pub now_ms: u64,
    /// This cluster.
    pub cluster: String,
    /// Pods that ask for GPUs in namespaces that opted in, and pods that our gate holds anywhere.
    pub pods: Vec<PodView>,
    /// Namespaces that opted in, with their rules or the error in them.
    pub namespaces: BTreeMap<String, Result<Rules, String>>,
    /// Own requests that have not ended, by id; `None` before the first answer of the broker.
    pub requests: Option<BTreeMap<String, RequestFacts>>,
    /// Ended requests that pods still name.
    pub ended: BTreeMap<String, EndedRequest>,
    /// Own leases by virtual node, by id; `None` before the first desired state.
    pub leases: Option<BTreeMap<String, LeaseFacts>>,
    /// Free GPUs of this cluster's own nodes, by resource.
    pub local: Vec<BTreeMap<String, u64>>,
    /// Submissions under way.
    pub in_flight: Vec<InFlight>,
    /// Recently refused submissions by idempotency key: reason, and when they may be tried again.
    pub refused: BTreeMap<String, (String, u64)>,
    /// Recently refused renewals by lease: reason, and when they may be tried again.
    pub renewals_refused: BTreeMap<String, (String, u64)>,
    /// Recent events by pod UID.
    pub written_notes: BTreeMap<String, Vec<WrittenNote>>,
    /// Number of pods that an owner will make, by its UID, if known.
    pub expected: BTreeMap<String, u32>,
    /// Why this cluster cannot borrow virtual nodes, if so: nothing is requested, and pods stay.
    pub cannot_borrow: Option<String>,
    /// How long pods of one owner are gathered.
    pub debounce_ms: u64,
    /// How long a pod is held at most.
    pub hold_ms: u64,
    /// Least CPU requested with a GPU, in thousandths of a core.
    pub least_cpu_milli: u64,
    /// Least memory requested with a GPU, in MiB.
    pub least_memory_mib: u64,
}

impl BurstSnapshot {
    /// The checkpoint stores that requests of people name for the pods of their namespaces; `None` before the first
    /// answer of the broker. Pods of a burst name theirs themselves. A request of another tenant may name a namespace,
    /// too: it chooses no Secret of its pods.
    pub(crate) fn requested_stores(&self) -> Option<RequestedStores> {
        let is_of_its_tenant = |request: &&RequestFacts| {
            let rules = self.namespaces.get(&request.namespace).and_then(|rules| rules.as_ref().ok());
            rules.is_some_and(|rules| rules.tenant == request.tenant)
        };
        let by_people = self.requests.as_ref()?.values().filter(|request| request.note.is_none());
        let named = by_people.filter(is_of_its_tenant).filter_map(|request| {
            let secret = request.options.checkpoint_secret.as_deref()?;
            Some((request.namespace.as_str(), secret))
        });
        Some(named.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::fixtures;

    #[test]
    fn only_requests_of_the_namespaces_tenant_choose_the_store_of_its_pods() {
        let mut request = fixtures::request(1, "");
        request.note = None;
        request.options.checkpoint_secret = Some("checkpoints".to_owned());
        let stores = |request: &RequestFacts| {
            let mut snapshot = fixtures::snapshot(Vec::new());
            snapshot.requests = Some([("req-1".to_owned(), request.clone())].into());
            snapshot.requested_stores()
        };
        assert_eq!(stores(&request), Some([("team-a", "checkpoints")].into_iter().collect()));
        request.tenant = "another".to_owned();
        assert_eq!(stores(&request), Some(RequestedStores::default()));
    }
}
