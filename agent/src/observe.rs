//! What the cluster has: nodes, devices, and what local work takes of them.
//!
//! An observer looks at Kubernetes, or at a file, and publishes the whole inventory each time it changes. Nothing is
//! published before the first complete look: an inventory that could not be read must not look like an empty cluster.

pub mod file;
mod functions;
mod gpu_pool;
mod health;
mod inventory;
pub mod kubernetes;
mod node_facts;
mod partial_object;
mod pod_facts;
mod topology;
mod topology_watch;
pub(crate) mod wiring;

use std::sync::Arc;

use comity_proto::v1::Node;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use functions::RdmaResource;
use serde::{Deserialize, Serialize};

use crate::model::node_id::NodeSalt;

/// What stays for local work, on every node: the offer shows it as in use, whether or not it is.
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

/// What an observer is told.
#[derive(Clone, Debug)]
pub struct InventorySettings {
    /// Makes node ids.
    pub salt: NodeSalt,
    /// What stays for local work.
    pub reserve: LocalReserve,
    /// Which resources count virtual functions of RDMA networks; for a cluster alone, as a file says it of each node.
    pub rdma: Vec<RdmaResource>,
}

/// The nodes as last seen, by id; `None` before the first complete look.
pub type Nodes = Option<Arc<Vec<Node>>>;

/// A running observer. Dropping it ends the looking.
#[derive(Debug)]
#[must_use = "dropping an inventory ends its observer"]
pub struct Inventory {
    nodes: watch::Receiver<Nodes>,
    task: JoinHandle<()>,
}

impl Inventory {
    /// An observer's output and the task that feeds it.
    pub fn new(nodes: watch::Receiver<Nodes>, task: JoinHandle<()>) -> Self {
        Self { nodes, task }
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
