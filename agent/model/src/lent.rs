//! Leases that this donor has in force, as observers of its cluster need them.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_types::LeaseId;

/// Leases in force by id; `None` until the agent's records and desired state are read.
pub type LentLeases = Option<Arc<BTreeMap<LeaseId, LentLease>>>;

/// A lease in force, with its part of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentLease {
    /// How its pods are recognised.
    pub pods: PodsOf,
    /// The mark by which its pods find its nodes.
    pub mark: NodeMark,
    /// Resource that counts its GPUs.
    pub resource: String,
    /// Whether pods of the lease may still begin: it is not ending.
    pub is_wanted: bool,
    /// By id of the node: amounts by resource, CPU in thousandths of a core, memory in bytes.
    pub nodes: BTreeMap<String, BTreeMap<String, u64>>,
}

impl LentLease {
    /// The user of Liqo that makes its pods.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match &self.pods {
            PodsOf::Namespace => None,
            PodsOf::LiqoUser(user) => Some(user.as_str()).filter(|user| !user.is_empty()),
        }
    }
}

/// Which pods are a lease's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodsOf {
    /// All pods of its namespace.
    Namespace,
    /// The pods that this user of Liqo made; empty: none yet.
    LiqoUser(String),
}

/// What a lease sets on its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMark {
    /// Nothing: its pods select the node by its host name.
    Nothing,
    /// The lease's label, and the extended resource that counts its GPUs.
    Label,
    /// The lease's extended resource.
    Resource,
}
