//! Members of a group: addresses and incarnation.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::replication::identity::Incarnation;

/// Addresses of one broker. They are part of the log and fixed for its number.
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

/// A member in Raft's membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberNode {
    /// Its addresses.
    pub address: MemberAddress,
    /// Admitted incarnation; messages name it, and other incarnations refuse them.
    pub incarnation: Incarnation,
}

impl fmt::Display for MemberNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, incarnation {}", self.address, self.incarnation)
    }
}
