//! Nodes of a donor, as its API server has them: no GPU may be promised twice for long.
//!
//! A node is over-committed if its GPUs are fewer than those in local use and those lent there together. Pods of a
//! lease are local use as far as they exceed the lease's part of their node. A lease that is called back or ends is no
//! longer promised, and one that is set up is not yet. A donor's own pods may always take a GPU; then the agents and
//! brokers must call a lease back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::LeaseFacts;

/// A node may be over-committed for this long. Without faults it takes about six seconds: the agent gathers changes for
/// 0.2 s, and the broker waits five for local use to pass. A fault of the agent, its line or its API server lasts up to
/// 20 s, the next may follow 4 s later, and all brokers may be down in between.
const OVERCOMMITTED_FOR_AT_MOST: Duration = Duration::from_secs(120);

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DonorNode {
    /// Its GPUs, as Kubernetes counts them.
    pub gpus: u64,
    /// Leases that are open on it, with their GPUs here where the node counts them.
    pub leases: BTreeMap<String, Option<u64>>,
}

/// A pod that is bound to a node and not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorPod {
    /// Its node.
    pub node: String,
    /// The lease of its namespace.
    pub lease: Option<String>,
    /// Its GPUs.
    pub gpus: u64,
}

/// Nodes and pods of one donor, and since when nodes are over-committed.
#[derive(Debug, Default)]
pub(super) struct DonorNodes {
    pub(super) nodes: BTreeMap<String, DonorNode>,
    pub(super) pods: BTreeMap<String, DonorPod>,
    since: BTreeMap<String, Duration>,
    /// Longest time that a node was over-committed.
    pub(super) longest: Duration,
}

impl DonorNodes {
    /// Over-committed nodes, each with a sentence.
    pub(super) fn overcommitted(
        &self,
        quotas: &BTreeMap<String, u64>,
        leases: &BTreeMap<String, LeaseFacts>,
    ) -> BTreeMap<String, String> {
        let over = |(name, node): (&String, &DonorNode)| {
            let part =
                |lease: &String, counted: &Option<u64>| counted.or_else(|| quotas.get(lease).copied()).unwrap_or(0);
            let parts: BTreeMap<&str, u64> =
                node.leases.iter().map(|(lease, counted)| (lease.as_str(), part(lease, counted))).collect();
            let is_promised = |lease: &str| leases.get(lease).is_none_or(LeaseFacts::is_promised);
            let lent: BTreeMap<&str, u64> =
                parts.iter().filter(|(lease, _)| is_promised(lease)).map(|(lease, gpus)| (*lease, *gpus)).collect();
            let mut held: BTreeMap<Option<&str>, u64> = BTreeMap::new();
            for pod in self.pods.values().filter(|pod| pod.node == *name) {
                *held.entry(pod.lease.as_deref()).or_default() += pod.gpus;
            }
            let excess = |(lease, gpus): (&Option<&str>, &u64)| {
                gpus.saturating_sub(lease.and_then(|lease| parts.get(lease)).copied().unwrap_or(0))
            };
            let local: u64 = held.iter().map(excess).sum();
            let sum = local + lent.values().sum::<u64>();
            (sum > node.gpus).then(|| {
                (name.clone(), format!("{name} has {} GPUs, with {local} in local use and {lent:?} lent", node.gpus))
            })
        };
        self.nodes.iter().filter_map(over).collect()
    }

    /// Notes which nodes are over-committed at a time since the start; returns those that are for too long.
    pub(super) fn note(&mut self, over: &BTreeMap<String, String>, at: Duration) -> Vec<String> {
        self.since.retain(|node, _| over.contains_key(node));
        let mut too_long = Vec::new();
        for (node, text) in over {
            let lasts = at.saturating_sub(*self.since.entry(node.clone()).or_insert(at));
            self.longest = self.longest.max(lasts);
            if lasts > OVERCOMMITTED_FOR_AT_MOST {
                too_long.push(format!("for more than {} s: {text}", OVERCOMMITTED_FOR_AT_MOST.as_secs()));
            }
        }
        too_long
    }
}
