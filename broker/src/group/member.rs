//! Where a broker of the group is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Addresses of one broker. They are part of the log: a broker keeps them as long as it keeps its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAddress {
    /// "host:port" for its peers.
    pub raft: String,
    /// "host:port" for agents and users.
    pub client: String,
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (clients: {})", self.raft, self.client)
    }
}
