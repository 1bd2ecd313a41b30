//! Who belongs to the broker group, as the group itself remembers it.

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// What a broker is to be in its group. Raft's membership follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BrokerRole {
    /// It gets the log and votes.
    Voter,
    /// It gets the log and does not vote.
    Learner,
    /// It left. Its number is never used again: a later broker of the same number would be taken for this one.
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
    /// What it is to be.
    pub role: BrokerRole,
    /// "host:port" for its peers.
    pub raft_address: String,
    /// "host:port" for agents and users.
    pub client_address: String,
    /// Since when it has this role.
    pub since: Timestamp,
}
