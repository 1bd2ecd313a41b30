//! Changes of the members of a group.

use serde::{Deserialize, Serialize};

use super::member::MemberAddress;

/// A change that a maintainer asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MembershipChange {
    /// A broker gets the log from now on. It must run, and be reachable.
    AddLearner {
        /// Its number; one that no broker of the group ever had.
        id: u64,
        /// Where it is.
        address: MemberAddress,
    },
    /// A learner votes, once it has caught up.
    Promote {
        /// Its number.
        id: u64,
    },
    /// A broker leaves for good.
    Remove {
        /// Its number.
        id: u64,
    },
    /// Another voter leads.
    TransferLeader {
        /// Which; the one that is furthest if none is named.
        to: Option<u64>,
    },
}
