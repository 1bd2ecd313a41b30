//! The types that openraft is used with here.

use std::fmt;
use std::sync::Arc;

use comity_core::LogEnvelope;
use comity_core::log::Applied;
use openraft::type_config::alias;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::member::MemberNode;
use crate::storage::StateMachine;

openraft::declare_raft_types!(
    /// The types of a broker group. One leader a term, as in the Raft paper.
    pub TypeConfig:
        D = Proposed,
        R = Option<Applied>,
        NodeId = u64,
        Node = MemberNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
);

/// Consensus on one broker.
pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachine>;
/// A place in the log.
pub(crate) type LogId = alias::LogIdOf<TypeConfig>;
/// A vote.
pub(crate) type Vote = alias::VoteOf<TypeConfig>;
/// Members, with the place in the log that made them so.
pub(crate) type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub(crate) type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;
/// Raft's own clock.
pub(crate) type RaftInstant = alias::InstantOf<TypeConfig>;
/// One log entry.
pub(crate) type Entry = alias::EntryOf<TypeConfig>;

/// A command on its way through the log. Shared, because openraft clones entries.
#[derive(Clone)]
pub struct Proposed(pub(crate) Arc<LogEnvelope>);

impl fmt::Display for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.command.name())
    }
}

impl fmt::Debug for Proposed {
    /// The name only: openraft prints entries in its own debug output, and offers are large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposed({})", self.0.command.name())
    }
}

impl Serialize for Proposed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Proposed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LogEnvelope::deserialize(deserializer).map(|envelope| Self(Arc::new(envelope)))
    }
}
