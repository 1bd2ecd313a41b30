//! Borrowed leases that are connected in this process; a restart connects them again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_agent_fabric::LocalForward;
use comity_runtime::SecretString;
use comity_types::LeaseId;

use crate::reconcile::live::LiveLease;

/// A borrowed lease in this process, by delivery.
pub enum Borrowed {
    /// A namespace of the donor.
    Namespace {
        /// Keeps the loopback port open.
        forward: LocalForward,
        /// The kubeconfig, for the local API.
        kubeconfig: SecretString,
    },
    /// A node of this cluster.
    VirtualNode {
        /// Its name.
        node: String,
    },
}

impl Borrowed {
    /// How it is used.
    #[must_use]
    pub fn access(&self) -> Access {
        match self {
            Self::Namespace { forward, kubeconfig } => Access::Kubeconfig(forward.local_addr(), kubeconfig.clone()),
            Self::VirtualNode { node } => Access::VirtualNode(node.clone()),
        }
    }
}

/// A lease that is connected in this process.
pub struct Connected {
    /// Its credential and tunnel.
    pub lease: LiveLease,
    /// Its forward or node.
    pub borrowed: Borrowed,
}

/// How to use a lease, as the local API reports it.
#[derive(Clone, Debug)]
pub enum Access {
    /// Local address of the donor's API, and the kubeconfig for it.
    Kubeconfig(SocketAddr, SecretString),
    /// Name of the node; there is no kubeconfig.
    VirtualNode(String),
}

/// All connected leases, by id.
#[derive(Default)]
pub struct Connections(Mutex<BTreeMap<LeaseId, Connected>>);

impl Connections {
    fn leases(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Connected>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connected leases, as a plan sees them.
    #[must_use]
    pub fn live(&self) -> BTreeMap<LeaseId, LiveLease> {
        self.leases().iter().map(|(id, connected)| (*id, connected.lease.clone())).collect()
    }

    /// How each connected lease is used.
    #[must_use]
    pub fn accesses(&self) -> BTreeMap<LeaseId, Access> {
        self.leases().iter().map(|(id, connected)| (*id, connected.borrowed.access())).collect()
    }

    /// How a connected lease is used.
    #[must_use]
    pub fn access(&self, lease: LeaseId) -> Option<Access> {
        Some(self.leases().get(&lease)?.borrowed.access())
    }

    /// Adds or replaces a lease.
    pub(crate) fn insert(&self, lease: LeaseId, connected: Connected) {
        self.leases().insert(lease, connected);
    }

    /// Disconnects a lease; its port stays open until the returned value is dropped.
    pub(crate) fn remove(&self, lease: LeaseId) -> Option<Connected> {
        self.leases().remove(&lease)
    }

    /// Disconnects all leases.
    pub(crate) fn clear(&self) {
        self.leases().clear();
    }
}
