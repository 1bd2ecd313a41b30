//! The running parts of this process, as a plan sees them.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_liqo::network::ObservedNetwork;
use comity_agent_model::object_id::ObjectId;
use comity_agent_state::record::ReportKey;
use comity_types::{LeaseId, PeeringId};

/// A lease that this process connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLease {
    /// Epoch of its credential.
    pub epoch: u32,
    /// Sequence of its credential.
    pub sequence: u64,
    /// Epoch of the tunnel that its port forwards into.
    pub tunnel_epoch: u32,
}

/// State in memory: what runs in this process, and recent observations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Tunnels in the fabric, with their epochs.
    pub tunnels: BTreeMap<PeeringId, u32>,
    /// Leases whose forward and kubeconfig exist.
    pub accepted: BTreeMap<LeaseId, LiveLease>,
    /// Reports acknowledged just now, which the desired state may not show yet.
    pub settling: BTreeSet<ReportKey>,
    /// Leases under reclaim whose work is saved.
    pub saved: BTreeSet<LeaseId>,
    /// Leases without their label or resource on one of their nodes.
    pub unmarked: BTreeSet<LeaseId>,
    /// Networks between Liqos, by the peering that carries them.
    pub networks: BTreeMap<PeeringId, ObservedNetwork>,
    /// Objects that the broker no longer wants, as [`Desired`](comity_agent_model::desired::Desired) confirmed.
    pub unwanted: BTreeSet<ObjectId>,
}
