//! Membership of the broker group, as recorded in the state.

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// The role of a broker in its group. Raft's membership follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BrokerRole {
    /// Receives the log and votes.
    Voter,
    /// Receives the log and does not vote.
    Learner,
    /// Has left. The group never reuses its number, because a new broker with the number would be mistaken for it.
    Removed,
}

impl BrokerRole {
    /// The text form, as in "voter".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
            Self::Removed => "removed",
        }
    }
}

/// One broker of the group, past or present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// Its role.
    pub role: BrokerRole,
    /// "host:port" for its peers.
    pub raft_address: String,
    /// "host:port" for agents and users.
    pub client_address: String,
    /// When it got this role.
    pub since: Timestamp,
}
