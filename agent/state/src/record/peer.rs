//! Other clusters that this agent has met, each with its identity key.

use comity_runtime::IdentityPublicKey;
use serde::{Deserialize, Serialize};

/// Most clusters that are remembered: far more than one federation has, so that a broker which invents clusters fills
/// no disk. Then a new one takes the place of one that is [replaceable](super::Records::replaceable_peer).
pub const MAX_PEERS: usize = 4_096;

/// Why an identity key is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// It was the first that this agent saw of the cluster.
    FirstUse,
    /// A pinned key of the cluster's institution vouches for it.
    Voucher,
    /// A person accepted it.
    Accepted,
}

/// An identity key that was refused, because the cluster has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedKey {
    /// The key.
    pub identity_key: IdentityPublicKey,
    /// When it was last refused, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Another cluster, and the identity key that it has to have in every peering and epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// The cluster.
    pub cluster: String,
    /// Its identity key.
    pub identity_key: IdentityPublicKey,
    /// Why the key is trusted.
    pub trust: Trust,
    /// Its institution: that of the voucher; without one, as the broker said at the first use.
    pub institution: String,
    /// When this key was first trusted, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether this agent ever admitted a lease with it, on either side.
    pub had_lease: bool,
    /// The last key that was refused, until a person decides.
    pub refused: Option<RefusedKey>,
}

impl PeerRecord {
    /// The institution that vouches for the key, if one does.
    #[must_use]
    pub fn vouched_institution(&self) -> Option<&str> {
        (self.trust == Trust::Voucher).then_some(self.institution.as_str())
    }
}
