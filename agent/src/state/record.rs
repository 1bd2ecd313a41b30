//! What an agent remembers over restarts: its keys of each peering and epoch, what it made for each lease, and what it
//! has still to tell the broker.

mod liqo;
mod network;
mod secret;

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_proto::v1;
use comity_runtime::IdentityPublicKey;
use serde::{Deserialize, Serialize};

pub use liqo::{LiqoFailure, LiqoRecord, MintedToken, NetworkRecord, SealedMessage};
pub use network::RemoteNetwork;
pub use secret::{SecretBlob, SecretKey};

use crate::delivery::DeliveryKind;
use crate::liqo::donor::{Grant, Grants};
use crate::model::side::Side;

/// The other side's keys, after its bundle was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteKeys {
    /// Its cluster.
    pub cluster: String,
    /// WireGuard public key.
    pub wireguard_public: [u8; 32],
    /// HPKE public key.
    pub hpke_public: [u8; 32],
    /// Identity key that signed them.
    pub identity_key: IdentityPublicKey,
    /// Candidates of its fabric endpoint, "host:port".
    pub endpoints: Vec<String>,
    /// What it says of its network.
    #[serde(default)]
    pub network: RemoteNetwork,
}

/// This side of one epoch of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeeringRecord {
    /// "peer-N".
    pub peering: String,
    /// Epoch of the keys.
    pub epoch: u32,
    /// Which side this is.
    pub side: Side,
    /// WireGuard private key.
    pub wireguard_secret: SecretKey,
    /// HPKE private key.
    pub hpke_secret: SecretKey,
    /// The signed bundle as it was shown, encoded: another one in the same epoch would be refused.
    pub bundle: Vec<u8>,
    /// The other side's keys, once verified.
    pub remote: Option<RemoteKeys>,
    /// WireGuard pre-shared key, once made (donor) or opened (origin).
    pub preshared: Option<SecretKey>,
    /// Nonce that travels with it.
    pub nonce: Option<SecretKey>,
    /// Last sequence sealed for the step that this side sends (`psk` or `proof`).
    pub sealed_sequence: u64,
    /// Whether the broker took that envelope.
    pub sealed_accepted: bool,
    /// Donor: whether the proof was checked.
    pub proven: bool,
    /// Highest sequence opened, by "lease/step": none is opened twice.
    pub opened: BTreeMap<String, u64>,
}

impl PeeringRecord {
    /// Fresh keys of one side, and the bundle that shows them; nothing of the other side is known yet.
    #[must_use]
    pub fn new(bundle: &v1::KeyBundle, side: Side, wireguard_secret: SecretKey, hpke_secret: SecretKey) -> Self {
        Self {
            peering: bundle.peering.clone(),
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

    /// Whether everything is here that makes a tunnel.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.remote.is_some() && self.preshared.is_some()
    }

    /// Name under which opened sequences of an envelope's kind are remembered.
    #[must_use]
    pub fn kind(lease: &str, step: &str) -> String {
        format!("{lease}/{step}")
    }

    /// Whether an envelope of this kind and sequence was opened already, or is older than one that was.
    #[must_use]
    pub fn has_opened(&self, lease: &str, step: &str, sequence: u64) -> bool {
        self.opened.get(&Self::kind(lease, step)).is_some_and(|opened| *opened >= sequence)
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

/// The donor's side of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorRecord {
    /// "lease-N".
    pub lease: String,
    /// Fencing token under which it was admitted.
    pub fencing_token: u64,
    /// Thousandths of GPUs that it takes, by this agent's own count.
    pub milli: u64,
    /// When it was admitted, in milliseconds since 1970.
    pub admitted_at_ms: u64,
    /// How it reaches the origin.
    #[serde(default)]
    pub delivery: DeliveryKind,
    /// Namespace, once prepared.
    pub namespace: Option<String>,
    /// What its virtual node may have, once prepared; in force until the lease is taken down.
    #[serde(default)]
    pub grant: Option<Grant>,
    /// Name of the ResourceSlice that stands for it, once prepared: see [`slice`](Self::slice).
    #[serde(default)]
    pub slice: Option<String>,
    /// Last sequence used for its credentials, in any epoch.
    pub last_sequence: u64,
    /// The newest credential that was sealed and not refused.
    pub sealed: Option<SealedCredential>,
    /// Everything was taken down.
    pub removed: bool,
    /// The broker knows that everything was taken down.
    pub clean_acked: bool,
}

impl DonorRecord {
    /// A lease that was admitted, and of which nothing is made yet.
    #[must_use]
    pub fn new(lease: &str, fencing_token: u64, delivery: DeliveryKind) -> Self {
        Self {
            lease: lease.to_owned(),
            fencing_token,
            milli: 0,
            admitted_at_ms: 0,
            delivery,
            namespace: None,
            grant: None,
            slice: None,
            last_sequence: 0,
            sealed: None,
            removed: false,
            clean_acked: false,
        }
    }

    /// Name of the ResourceSlice that stands for it: that of an earlier lease whose virtual node is idle, or the
    /// lease's id.
    #[must_use]
    pub fn slice(&self) -> &str {
        self.slice.as_deref().unwrap_or(&self.lease)
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
    /// "lease-N".
    pub lease: String,
    /// Fencing token as last seen.
    pub fencing_token: u64,
    /// How it reaches this cluster.
    #[serde(default)]
    pub delivery: DeliveryKind,
    /// The newest credential.
    pub credential: Option<HeldCredential>,
    /// The virtual node that stands for it, once it does: see [`node`](Self::node).
    #[serde(default)]
    pub node: Option<String>,
    /// Loopback port of its forward: kept, so that a kubeconfig stays good over restarts.
    pub local_port: Option<u16>,
    /// Everything was taken down.
    pub removed: bool,
    /// The broker knows that everything was taken down.
    pub clean_acked: bool,
}

impl OriginRecord {
    /// A lease of which nothing is here yet.
    #[must_use]
    pub fn new(lease: &str, fencing_token: u64, delivery: DeliveryKind) -> Self {
        Self {
            lease: lease.to_owned(),
            fencing_token,
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
    pub fn node(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.lease)
    }
}

/// What a message in the outbox is about: at most one of each is on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportKey {
    /// The key bundle.
    Keys(String, u32),
    /// The `psk` envelope.
    Psk(String, u32),
    /// The `proof` envelope.
    Proof(String, u32),
    /// The donor checked the proof.
    Authenticated(String, u32),
    /// The tunnel stands.
    Established(String, u32),
    /// This epoch cannot go on.
    PeeringFailed(String, u32),
    /// Everything of the peering is taken down.
    Closed(String),
    /// This side's envelope of a peering's Liqo exchange.
    Liqo(String),
    /// This side's envelope about the network between the two Liqos of a peering.
    LiqoNetwork(String),
    /// The `credential` envelope of a lease.
    Credential(String),
    /// This side of a lease is ready.
    Ready(String),
    /// This side of a lease cannot go on.
    LeaseFailed(String),
    /// The work of a lease that is being reclaimed is saved.
    Checkpointed(String),
    /// This side of a lease is taken down.
    Clean(String),
    /// An envelope may be deleted: peering, epoch, lease, step, sequence.
    EnvelopeAck(String, u32, String, String, u64),
}

/// A message that the broker has not acknowledged yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// What it is about.
    pub key: ReportKey,
    /// The message, with its id.
    pub message: v1::AgentMessage,
}

/// Everything an agent remembers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// By peering and epoch.
    pub peerings: BTreeMap<(String, u32), Arc<PeeringRecord>>,
    /// Leases that this cluster lends.
    pub donors: BTreeMap<String, Arc<DonorRecord>>,
    /// Leases that this cluster borrows.
    pub origins: BTreeMap<String, Arc<OriginRecord>>,
    /// Liqo's exchange, by peering.
    pub liqo: BTreeMap<String, Arc<LiqoRecord>>,
    /// Peerings that were taken down and reported so.
    pub closed: BTreeMap<String, u32>,
    /// Unacknowledged messages by id.
    pub outbox: BTreeMap<u64, Arc<Outgoing>>,
    /// Highest fencing token admitted: a lease that is not known and has no higher one is of the past.
    pub fence: u64,
}

impl Records {
    /// The peering whose side of things decides how the network to a cluster's Liqo is made. Two clusters that lend to
    /// each other have two peerings, and their Liqos one network: both sides take the older peering.
    #[must_use]
    pub fn network_carrier(&self, liqo_id: &str) -> Option<&String> {
        let number = |peering: &str| peering.strip_prefix("peer-").and_then(|number| number.parse::<u64>().ok());
        let of_cluster = |record: &LiqoRecord| record.liqo_id == liqo_id && record.standing_network().is_some();
        let carriers = self.liqo.iter().filter(|(_, record)| of_cluster(record)).map(|(peering, _)| peering);
        carriers.min_by_key(|peering| (number(peering), *peering))
    }

    /// What is lent by virtual node now: the same before and after a restart.
    #[must_use]
    pub fn grants(&self) -> Grants {
        let in_force = self.donors.values().filter(|record| !record.removed);
        Grants(in_force.filter_map(|record| Some((record.slice().to_owned(), record.grant.clone()?))).collect())
    }

    /// The record of one epoch.
    #[must_use]
    pub fn peering(&self, peering: &str, epoch: u32) -> Option<&Arc<PeeringRecord>> {
        self.peerings.get(&(peering.to_owned(), epoch))
    }

    /// All epochs of a peering, oldest first.
    pub fn epochs<'a>(&'a self, peering: &'a str) -> impl DoubleEndedIterator<Item = &'a Arc<PeeringRecord>> {
        self.peerings.range((peering.to_owned(), 0)..=(peering.to_owned(), u32::MAX)).map(|(_, record)| record)
    }

    /// Thousandths of GPUs lent out, by this agent's own count.
    #[must_use]
    pub fn lent_milli(&self) -> u64 {
        self.donors.values().filter(|record| !record.removed).map(|record| record.milli).sum()
    }
}
