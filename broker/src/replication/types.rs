//! Type configuration of openraft.

use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use bytes::Bytes;
use comity_core::LogEnvelope;
use comity_core::reply::Applied;
use openraft::type_config::alias;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::command_codec;
use super::member::MemberNode;

openraft::declare_raft_types!(
    /// The types of a broker group. One leader a term, as in the Raft paper.
    pub TypeConfig:
        D = Proposed,
        R = Option<Applied>,
        NodeId = u64,
        Node = MemberNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
);

/// A log position.
pub(crate) type LogId = alias::LogIdOf<TypeConfig>;
/// A vote.
pub(crate) type Vote = alias::VoteOf<TypeConfig>;
/// Members, with the log position of that change.
pub(crate) type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
/// Position and members that a snapshot covers.
pub(crate) type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;
/// Raft's own clock.
pub(crate) type RaftInstant = alias::InstantOf<TypeConfig>;
/// One log entry.
pub(crate) type Entry = alias::EntryOf<TypeConfig>;

/// A command in the log: encoded once by the proposer, and decoded once on each broker, when applied. Shared, because
/// openraft clones entries.
#[derive(Clone)]
pub struct Proposed(Arc<Written>);

struct Written {
    /// Encoded form, as stored and sent.
    bytes: Bytes,
    /// The decoded command, on the leader until it is applied.
    envelope: Mutex<Option<LogEnvelope>>,
}

impl Proposed {
    /// A command proposed by this broker, with its encoding.
    pub(crate) fn new(envelope: LogEnvelope, bytes: Bytes) -> Self {
        Self(Arc::new(Written { bytes, envelope: Mutex::new(Some(envelope)) }))
    }

    /// A command proposed by another broker, or before this one started.
    pub(crate) fn stored(bytes: Bytes) -> Self {
        Self(Arc::new(Written { bytes, envelope: Mutex::new(None) }))
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Takes the decoded command, to apply it; keeps only the bytes, because the log's cache holds entries for longer.
    pub(crate) fn take(&self) -> io::Result<LogEnvelope> {
        let ready = self.0.envelope.lock().unwrap_or_else(PoisonError::into_inner).take();
        ready.map_or_else(|| command_codec::decode_command(&self.0.bytes), Ok)
    }
}

impl fmt::Display for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let envelope = self.0.envelope.lock().unwrap_or_else(PoisonError::into_inner);
        f.write_str(envelope.as_ref().map_or("a command", |envelope| envelope.command.name()))
    }
}

impl fmt::Debug for Proposed {
    /// The name only: openraft prints entries in its own debug output, and offers are large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposed({self})")
    }
}

impl Serialize for Proposed {
    /// openraft asks for it; entries are stored and sent as their bytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        command_codec::decode_command(&self.0.bytes).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Proposed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let envelope = LogEnvelope::deserialize(deserializer)?;
        let bytes = command_codec::encode_command(&envelope).map_err(serde::de::Error::custom)?;
        Ok(Self::new(envelope, bytes))
    }
}
