//! The cluster's inventory: nodes, devices, and their local use.
//!
//! An observer of Kubernetes or of a file publishes the whole inventory at each change, and nothing before the first
//! complete list: an unreadable inventory must not look like an empty cluster.

mod dra_devices;
mod dra_watch;
pub mod file;
mod functions;
mod gpu_pool;
mod hami;
mod health;
mod inventory;
pub mod kubernetes;
mod lent_pods;
mod mig_devices;
mod node_facts;
mod node_marks;
mod not_offered;
pub(crate) mod partial_object;
mod pending_pods;
mod pod_facts;
mod topology;
mod topology_watch;
pub(crate) mod wiring;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent_model::lent::LentLeases;
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::nodes::Nodes;
use comity_types::LeaseId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use functions::RdmaResource;
pub use lent_pods::DriftedPod;
pub use pod_facts::PLACEHOLDER_NAMESPACE;
use serde::{Deserialize, Serialize};

use crate::devices::DeviceTable;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Nodes of one offer, as the broker bounds it.
const MAX_NODES: usize = 10_000;
/// Devices of one node, as the broker bounds it.
const MAX_DEVICES: usize = 128;
/// A whole device, in thousandths.
const WHOLE_MILLI: u32 = 1_000;
/// Salt of node ids in tests.
#[cfg(test)]
const TEST_SALT: NodeSalt = NodeSalt::new([1; 32]);

/// Capacity of every node reserved for local work: the offer shows it as in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalReserve {
    /// Whole devices.
    pub gpus_per_node: u32,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
}

/// Settings of an observer.
#[derive(Clone, Debug)]
pub struct InventorySettings {
    /// Salt of node ids.
    pub salt: NodeSalt,
    /// Capacity reserved for local work.
    pub reserve: LocalReserve,
    /// Resources that count virtual functions of RDMA networks; unused for a file, which states them for each node.
    pub rdma: Vec<RdmaResource>,
}

/// Differences between the leases in force and the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseDifferences {
    /// Pods beyond their leases, the youngest of each lease and node first.
    pub drifted: Vec<DriftedPod>,
    /// Leases without their label or resource on one of their nodes.
    pub unmarked: BTreeSet<LeaseId>,
    /// Leased GPUs that no pod of the lease uses, by lease and name of the node, of leases that are not ending, and
    /// without devices of DRA drivers. `None` until leases and pods are known.
    pub unused: Option<BTreeMap<(LeaseId, String), u64>>,
}

/// For observers of capacity alone: no lease is in force.
#[must_use]
pub fn no_leases() -> watch::Receiver<LentLeases> {
    watch::channel(Some(Arc::default())).1
}

/// A running observer; ends when dropped.
#[derive(Debug)]
#[must_use = "dropping an inventory ends its observer"]
pub struct Inventory {
    nodes: watch::Receiver<Nodes>,
    differences: watch::Receiver<Arc<LeaseDifferences>>,
    devices: watch::Receiver<Arc<DeviceTable>>,
    task: JoinHandle<()>,
}

impl Inventory {
    /// Wraps the output and task of an observer that sees no leases.
    pub fn new(nodes: watch::Receiver<Nodes>, task: JoinHandle<()>) -> Self {
        Self::with_leases(nodes, watch::channel(Arc::default()).1, task)
    }

    /// Wraps an observer's output and its task.
    pub fn with_leases(
        nodes: watch::Receiver<Nodes>,
        differences: watch::Receiver<Arc<LeaseDifferences>>,
        task: JoinHandle<()>,
    ) -> Self {
        Self { nodes, differences, devices: watch::channel(Arc::default()).1, task }
    }

    /// With the devices and their holders.
    pub fn with_devices(mut self, devices: watch::Receiver<Arc<DeviceTable>>) -> Self {
        self.devices = devices;
        self
    }

    /// Follows the devices and their holders; empty without device readers and DRA drivers.
    #[must_use]
    pub fn devices(&self) -> watch::Receiver<Arc<DeviceTable>> {
        self.devices.clone()
    }

    /// Follows the differences between leases and cluster.
    #[must_use]
    pub fn differences(&self) -> watch::Receiver<Arc<LeaseDifferences>> {
        self.differences.clone()
    }

    /// Follows the inventory.
    #[must_use]
    pub fn nodes(&self) -> watch::Receiver<Nodes> {
        self.nodes.clone()
    }
}

impl Drop for Inventory {
    fn drop(&mut self) {
        self.task.abort();
    }
}
