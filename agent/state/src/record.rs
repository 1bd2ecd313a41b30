//! The agent's records: keys of each peering and epoch, state of each lease, and the outbox to the broker.

mod admitted;
mod liqo;
mod network;
mod peer;
mod public_key;
mod secret;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent_liqo::donor::{Grant, Grants};
use comity_agent_model::envelope::{EnvelopeKey, lease_text};
use comity_proto::v1;
use comity_runtime::IdentityPublicKey;
use comity_types::{DataNeed, Delivery, LeaseId, PeeringId, Side};
use serde::{Deserialize, Serialize};

pub use admitted::{AdmittedCapacity, AdmittedPart, AdmittedShare, functions_of};
pub use liqo::{LiqoFailure, LiqoRecord, MintedToken, NetworkRecord, SealedMessage};
pub use network::RemoteNetwork;
pub use peer::{MAX_PEERS, PeerRecord, RefusedKey, Trust};
pub use public_key::HpkePublicKey;
pub use secret::{SecretBlob, SecretKey};

/// The other side's keys, after its bundle was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteKeys {
    /// Its cluster.
    pub cluster: String,
    /// WireGuard public key.
    pub wireguard_public: [u8; 32],
    /// HPKE public key.
    pub hpke_public: HpkePublicKey,
    /// Identity key that signed them.
    pub identity_key: IdentityPublicKey,
    /// The pinned institution that vouches for the identity key; `None`: nobody does.
    pub institution: Option<String>,
    /// Candidates of its fabric endpoint, "host:port".
    pub endpoints: Vec<String>,
    /// Its network.
    pub network: RemoteNetwork,
}

/// This side of one epoch of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeeringRecord {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
    /// Which side this is.
    pub side: Side,
    /// WireGuard private key.
    pub wireguard_secret: SecretKey,
    /// HPKE private key.
    pub hpke_secret: SecretKey,
    /// The signed bundle as sent, encoded: another one in the same epoch would be refused.
    pub bundle: Vec<u8>,
    /// The other side's keys, once verified.
    pub remote: Option<RemoteKeys>,
    /// WireGuard pre-shared key, once made (donor) or opened (origin).
    pub preshared: Option<SecretKey>,
    /// Nonce that travels with it.
    pub nonce: Option<SecretKey>,
    /// Last sequence sealed for the step that this side sends (`psk` or `proof`).
    pub sealed_sequence: u64,
    /// Whether the broker accepted that envelope.
    pub sealed_accepted: bool,
    /// Donor: whether the proof was checked.
    pub proven: bool,
    /// Highest sequence opened, by "lease/step": none is opened twice.
    pub opened: BTreeMap<String, u64>,
}

impl PeeringRecord {
    /// A record with fresh keys and their bundle; nothing of the other side is known yet.
    #[must_use]
    pub fn new(
        peering: PeeringId,
        bundle: &v1::KeyBundle,
        side: Side,
        wireguard_secret: SecretKey,
        hpke_secret: SecretKey,
    ) -> Self {
        Self {
            peering,
            epoch: bundle.epoch,
            side,
            wireguard_secret,
            hpke_secret,
            bundle: prost::Message::encode_to_vec(bundle),
            remote: None,
            preshared: None,
            nonce: None,
            sealed_sequence: 0,
            sealed_accepted: false,
            proven: false,
            opened: BTreeMap::new(),
        }
    }

    /// Whether it has all keys for a tunnel.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.remote.is_some() && self.preshared.is_some()
    }

    /// Key in `opened` for a kind of envelope.
    #[must_use]
    pub fn kind(lease: Option<LeaseId>, step: &str) -> String {
        format!("{}/{step}", lease_text(lease))
    }

    /// Whether an envelope was opened already, or is older than one of its kind that was.
    #[must_use]
    pub fn has_opened(&self, key: &EnvelopeKey) -> bool {
        self.opened.get(&Self::kind(key.lease, &key.step)).is_some_and(|opened| *opened >= key.sequence)
    }
}

/// A credential that was sealed for the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedCredential {
    /// Epoch whose key it was sealed to.
    pub epoch: u32,
    /// Its sequence.
    pub sequence: u64,
    /// When it was made, in milliseconds since 1970.
    pub issued_at_ms: u64,
    /// When it ends, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// End of the lease that it was made for.
    pub lease_end_ms: u64,
}

/// The other side of a lease, as remembered from its first step here. A lease never gets another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasePeer {
    /// The peering that carries the lease.
    pub peering: PeeringId,
    /// The other cluster.
    pub cluster: String,
    /// Its identity key, once a credential was sealed for it or opened from it.
    pub identity_key: Option<IdentityPublicKey>,
}

/// The donor's side of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorRecord {
    /// The lease.
    pub lease: LeaseId,
    /// Fencing token under which it was admitted.
    pub fencing_token: u64,
    /// The origin; `None` if the lease was never admitted.
    pub peer: Option<LeasePeer>,
    /// What it takes, by this agent's own count.
    pub capacity: AdmittedCapacity,
    /// When it was admitted, in milliseconds since 1970.
    pub admitted_at_ms: u64,
    /// Its delivery.
    pub delivery: Delivery,
    /// The tenant for whom it was admitted, whatever a broker says later.
    pub tenant: String,
    /// The GPU class as which it was admitted, whatever a broker says later.
    pub class: String,
    /// The datasets that its work reads, whatever a broker says later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataNeed>,
    /// The purpose for which it reads them; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub purpose: String,
    /// Namespace, once prepared.
    pub namespace: Option<String>,
    /// Grant of its virtual node, once prepared; in force until the lease is taken down.
    pub grant: Option<Grant>,
    /// Name of the ResourceSlice that stands for it, once prepared: see [`slice`](Self::slice).
    pub slice: Option<String>,
    /// Ids of the nodes to clean before it ends.
    pub nodes_to_clean: BTreeSet<String>,
    /// Last sequence used for its credentials, in any epoch.
    pub last_sequence: u64,
    /// The newest credential that was sealed and not refused.
    pub sealed: Option<SealedCredential>,
    /// Whether it is taken down.
    pub removed: bool,
    /// Whether it was taken down because it ended: it never returns, whatever a broker says later. After an outage that
    /// outlasted it, a lease may return.
    pub ended: bool,
    /// Whether the broker acknowledged that.
    pub clean_acked: bool,
}

impl DonorRecord {
    /// A record of an admitted lease without objects yet.
    #[must_use]
    pub fn new(lease: LeaseId, fencing_token: u64, delivery: Delivery) -> Self {
        Self {
            lease,
            fencing_token,
            peer: None,
            capacity: AdmittedCapacity::default(),
            admitted_at_ms: 0,
            delivery,
            tenant: String::new(),
            class: String::new(),
            data: Vec::new(),
            purpose: String::new(),
            namespace: None,
            grant: None,
            slice: None,
            nodes_to_clean: BTreeSet::new(),
            last_sequence: 0,
            sealed: None,
            removed: false,
            ended: false,
            clean_acked: false,
        }
    }

    /// Name of the ResourceSlice that stands for it: that of an earlier lease whose virtual node is idle, or the
    /// lease's id.
    #[must_use]
    pub fn slice(&self) -> String {
        self.slice.clone().unwrap_or_else(|| self.lease.to_string())
    }
}

/// A credential as the origin holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCredential {
    /// Epoch in which it came.
    pub epoch: u32,
    /// Its sequence.
    pub sequence: u64,
    /// Its encoded form.
    pub encoded: SecretBlob,
}

/// The origin's side of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRecord {
    /// The lease.
    pub lease: LeaseId,
    /// Fencing token as last seen.
    pub fencing_token: u64,
    /// The donor; `None` before the first credential.
    pub peer: Option<LeasePeer>,
    /// Its delivery.
    pub delivery: Delivery,
    /// The newest credential.
    pub credential: Option<HeldCredential>,
    /// Its virtual node, once there is one: see [`node`](Self::node).
    pub node: Option<String>,
    /// Loopback port of its forward: kept, so that a kubeconfig stays valid over restarts.
    pub local_port: Option<u16>,
    /// Whether it is taken down.
    pub removed: bool,
    /// Whether the broker acknowledged that.
    pub clean_acked: bool,
}

impl OriginRecord {
    /// A record of a lease without credential yet.
    #[must_use]
    pub fn new(lease: LeaseId, fencing_token: u64, delivery: Delivery) -> Self {
        Self {
            lease,
            fencing_token,
            peer: None,
            delivery,
            credential: None,
            node: None,
            local_port: None,
            removed: false,
            clean_acked: false,
        }
    }
    /// Name of the virtual node that stands for it: that of an earlier lease, or the lease's id.
    #[must_use]
    pub fn node(&self) -> String {
        self.node.clone().unwrap_or_else(|| self.lease.to_string())
    }
}

/// Subject of a message in the outbox, which holds at most one of each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportKey {
    /// The key bundle.
    Keys(PeeringId, u32),
    /// The `psk` envelope.
    Psk(PeeringId, u32),
    /// The `proof` envelope.
    Proof(PeeringId, u32),
    /// The donor checked the proof.
    Authenticated(PeeringId, u32),
    /// The tunnel is up.
    Established(PeeringId, u32),
    /// This epoch failed.
    PeeringFailed(PeeringId, u32),
    /// The peering is taken down.
    Closed(PeeringId),
    /// This side's envelope of a peering's Liqo exchange.
    Liqo(PeeringId),
    /// This side's envelope about the network between the two Liqos of a peering.
    LiqoNetwork(PeeringId),
    /// The `credential` envelope of a lease.
    Credential(LeaseId),
    /// This side of a lease is ready.
    Ready(LeaseId),
    /// This side of a lease failed.
    LeaseFailed(LeaseId),
    /// The work on a lease under reclaim is saved.
    Checkpointed(LeaseId),
    /// Whether work uses a lent lease.
    Use(LeaseId),
    /// This side of a lease is taken down.
    Clean(LeaseId),
    /// An envelope may be deleted.
    EnvelopeAck(EnvelopeKey),
}

/// A message that the broker has not acknowledged yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Its subject.
    pub key: ReportKey,
    /// The message, with its id.
    pub message: v1::AgentMessage,
}

/// Largest message id that is continued from: a million messages each second reach it after 70,000 years, so a larger
/// one is damage, and would overflow.
pub(crate) const MAX_MESSAGE_ID: u64 = 1 << 61;

/// All records of an agent. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// By peering and epoch.
    pub peerings: BTreeMap<(PeeringId, u32), Arc<PeeringRecord>>,
    /// Lent leases.
    pub donors: BTreeMap<LeaseId, Arc<DonorRecord>>,
    /// Borrowed leases.
    pub origins: BTreeMap<LeaseId, Arc<OriginRecord>>,
    /// Other clusters that were met, by name.
    pub peers: BTreeMap<String, Arc<PeerRecord>>,
    /// Liqo exchanges by peering.
    pub liqo: BTreeMap<PeeringId, Arc<LiqoRecord>>,
    /// Peerings reported as taken down, with their epochs.
    pub closed: BTreeMap<PeeringId, u32>,
    /// Unacknowledged messages by id.
    pub outbox: BTreeMap<u64, Arc<Outgoing>>,
    /// Highest admitted fencing token: an unknown lease without a higher one is stale.
    pub fence: u64,
}

impl Records {
    /// The peering that carries the network to a Liqo. Two clusters that lend to each other have two peerings but one
    /// network between their Liqos; both sides choose the older peering.
    #[must_use]
    pub fn network_carrier(&self, liqo_id: &str) -> Option<PeeringId> {
        let of_cluster = |record: &LiqoRecord| record.liqo_id == liqo_id && record.active_network().is_some();
        self.liqo.iter().find(|(_, record)| of_cluster(record)).map(|(peering, _)| *peering)
    }

    /// Grants of all leases in force by virtual node; the same after a restart.
    #[must_use]
    pub fn grants(&self) -> Grants {
        let in_force = self.donors.values().filter(|record| !record.removed);
        Grants(in_force.filter_map(|record| Some((record.slice(), record.grant.clone()?))).collect())
    }

    /// The cluster that a new one may replace when [`MAX_PEERS`] are remembered: the newest of those that this agent
    /// trusts by nothing but their first use, with no lease ever, and without a peering now. Whoever invents clusters
    /// to have a true one forgotten, and shows a key of its own for it, gets no more than at the first use of that
    /// cluster.
    #[must_use]
    pub fn replaceable_peer(&self) -> Option<&PeerRecord> {
        let connected: BTreeSet<&str> =
            self.peerings.values().filter_map(|record| Some(record.remote.as_ref()?.cluster.as_str())).collect();
        let unused = self.peers.values().map(|peer| &**peer).filter(|peer| {
            peer.trust == Trust::FirstUse && !peer.had_lease && !connected.contains(peer.cluster.as_str())
        });
        unused.max_by_key(|peer| peer.since_ms)
    }

    /// The record of one epoch.
    #[must_use]
    pub fn peering(&self, peering: PeeringId, epoch: u32) -> Option<&Arc<PeeringRecord>> {
        self.peerings.get(&(peering, epoch))
    }

    /// All epochs of a peering, oldest first.
    pub fn epochs(&self, peering: PeeringId) -> impl DoubleEndedIterator<Item = &Arc<PeeringRecord>> {
        self.peerings.range((peering, 0)..=(peering, u32::MAX)).map(|(_, record)| record)
    }

    /// Thousandths of GPUs lent out, by this agent's own count.
    #[must_use]
    pub fn lent_milli(&self) -> u64 {
        self.donors.values().filter(|record| !record.removed).map(|record| record.capacity.milli()).sum()
    }
}
