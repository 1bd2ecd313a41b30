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

/// Attributes pods to leases in force.
#[derive(Debug)]
pub struct PodOwners<'l> {
    leases: &'l BTreeMap<LeaseId, LentLease>,
    /// Leases by the user of Liqo that makes their pods.
    users: BTreeMap<&'l str, LeaseId>,
}

impl<'l> PodOwners<'l> {
    /// The owners among these leases.
    #[must_use]
    pub fn of(leases: &'l BTreeMap<LeaseId, LentLease>) -> Self {
        Self { leases, users: leases.iter().filter_map(|(id, lease)| Some((lease.user()?, *id))).collect() }
    }

    /// The owner of pods in the namespace of a lease: that lease, if it is in force and its pods are there.
    #[must_use]
    pub fn by_namespace(&self, lease: LeaseId) -> Option<LeaseId> {
        self.leases.get(&lease).filter(|found| found.pods == PodsOf::Namespace).map(|_| lease)
    }

    /// The owner of pods that a user of Liqo made. The label that names the user says so of any pod: check that the pod is
    /// in a namespace of guests where a wrong owner would hide local use.
    #[must_use]
    pub fn by_user(&self, user: &str) -> Option<LeaseId> {
        self.users.get(user).copied()
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
