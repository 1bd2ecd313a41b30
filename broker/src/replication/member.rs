//! Where a broker of the group is, and which life of its disk it is in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::replication::identity::Incarnation;

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

/// A member, as Raft's membership names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberNode {
    /// Where it is.
    pub address: MemberAddress,
    /// The life of its disk that was admitted. Messages to it name this one, and another refuses them.
    pub incarnation: Incarnation,
}

impl fmt::Display for MemberNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, incarnation {}", self.address, self.incarnation)
    }
}
