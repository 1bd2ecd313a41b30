//! Changes of the members of a group.

use comity_core::Actor;
use serde::{Deserialize, Serialize};

use super::member::MemberAddress;

/// A membership change, and who asked for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestedChange {
    /// Who asked for it.
    pub actor: Actor,
    /// Generation of the certificate with which the actor called; 0 for leader tasks.
    pub generation: u64,
    /// The change.
    pub change: MembershipChange,
}

/// A membership change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MembershipChange {
    /// Replicates the log to a broker, which must be running and reachable.
    AddLearner {
        /// Its number, never used in the group before.
        id: u64,
        /// Its addresses.
        address: MemberAddress,
    },
    /// Makes a learner a voter once it has caught up.
    Promote {
        /// Its number.
        id: u64,
    },
    /// Removes a broker for good.
    Remove {
        /// Its number.
        id: u64,
    },
    /// Transfers leadership.
    TransferLeader {
        /// The new leader; by default the most advanced voter.
        to: Option<u64>,
    },
}
