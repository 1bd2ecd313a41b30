//! What an agent tells people about itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::devices::ReaderCounts;

/// Status of an agent, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// This cluster.
    pub cluster: String,
    /// Trust domain of the federation.
    pub federation: String,
    /// Public identity key, "ed25519:BASE64".
    pub identity_key: String,
    /// Whether a stream to a broker is connected.
    pub connected: bool,
    /// Revision of the newest desired state.
    pub revision: u64,
    /// Messages that no broker has acknowledged.
    pub outbox: usize,
    /// Thousandths of GPUs lent, by the agent's own count.
    pub lent_gpu_milli: u64,
    /// Tunnels by peering, with their epochs.
    pub tunnels: BTreeMap<String, u32>,
    /// Networks between Liqos, by peering: "connected", or what they wait for.
    #[serde(default)]
    pub networks: BTreeMap<String, String>,
    /// Remapped pod networks of other clusters, with the ranges at which this cluster sees them, by cluster.
    #[serde(default)]
    pub remapped: BTreeMap<String, BTreeMap<String, String>>,
    /// Leases lent, with their namespaces.
    pub lent: BTreeMap<String, String>,
    /// Usable borrowed leases, with the loopback address of the donor's API, or the name of the node.
    pub borrowed: BTreeMap<String, String>,
    /// Whether the NetworkPolicies of guests are enforced here, in words; empty without guests.
    #[serde(default)]
    pub network_policies: String,
    /// Admission policies of guests that are not in force, with the reason. While there are any, this cluster lends
    /// nothing.
    #[serde(default)]
    pub missing_policies: BTreeMap<String, String>,
    /// Nodes that lend nothing until their canaries finish and find nothing, with the reason.
    #[serde(default)]
    pub unproved: BTreeMap<String, String>,
    /// Device readers.
    #[serde(default)]
    pub device_readers: ReaderCounts,
    /// Other clusters that showed an identity key which is refused until a person decides.
    #[serde(default)]
    pub refused_identities: BTreeSet<String>,
    /// Peerings as the broker describes them, by id: state and epoch.
    #[serde(default)]
    pub peerings: BTreeMap<String, String>,
    /// Peerings whose last handshake failed, by id, with the reasons.
    #[serde(default)]
    pub failed_handshakes: BTreeMap<String, String>,
    /// Steps that failed and wait to be retried, by "object/step", with their errors.
    #[serde(default)]
    pub failed_steps: BTreeMap<String, String>,
    /// Why a broker refused the newest offer.
    #[serde(default)]
    pub refused_offer: Option<String>,
    /// The newest head of the brokers' audit log that was proved to continue the one before, SIZE:ROOT.
    #[serde(default)]
    pub audit_anchor: Option<String>,
    /// Why the newest head of the audit log was refused.
    #[serde(default)]
    pub refused_audit_head: Option<String>,
    /// The commit of the policy that this agent has verified, and by what it is trusted; `None` without trust.
    #[serde(default)]
    pub signed_policy: Option<String>,
    /// Why the brokers' commit is another one than the verified one.
    #[serde(default)]
    pub refused_policy: Option<String>,
    /// The last reports that a broker refused, the newest last.
    #[serde(default)]
    pub refused_reports: Vec<String>,
}
