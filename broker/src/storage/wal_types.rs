//! Record types of raft-log.

use std::io::{self, Read, Write};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::storage::IOFlushed;
use raft_log::codeq::{Decode, Encode};
use tokio::sync::oneshot;

use crate::replication::command_codec::MAX_ENTRY_BYTES;
use crate::replication::entry_codec;
use crate::replication::types::{Entry, LogId, Proposed, TypeConfig, Vote};
use crate::storage::disk_fault::disk_watch::PendingWrite;

/// Names the types of the log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct WalTypes;

impl raft_log::Types for WalTypes {
    /// Term and index.
    type LogId = (u64, u64);
    type LogPayload = Payload;
    type Vote = StoredVote;
    type Callback = Flushed;
    type UserData = ();

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.1
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        payload.len() as u64
    }
}

/// An entry as its bytes. Cheap to clone: the log's cache hands out clones.
#[derive(Debug, Clone)]
pub(super) struct Payload {
    bytes: Bytes,
    /// The decoded entry, if it came from consensus.
    proposed: Option<Proposed>,
}

impl Payload {
    pub(super) fn of(entry: &Entry) -> io::Result<Self> {
        let proposed = match &entry.payload {
            EntryPayload::Normal(proposed) => Some(proposed.clone()),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        Ok(Self { bytes: entry_codec::encode(entry)?, proposed })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn into_entry(self, log_id: LogId) -> io::Result<Entry> {
        match self.proposed {
            Some(proposed) => Ok(Entry { log_id, payload: EntryPayload::Normal(proposed) }),
            None => entry_codec::decode(log_id, self.bytes),
        }
    }
}

impl Encode for Payload {
    fn encode<W: Write>(&self, mut w: W) -> io::Result<usize> {
        let len = u32::try_from(self.len()).map_err(io::Error::other)?;
        let head = len.encode(&mut w)?;
        w.write_all(&self.bytes)?;
        Ok(head + self.len())
    }
}

impl Decode for Payload {
    fn decode<R: Read>(mut r: R) -> io::Result<Self> {
        let len = u32::decode(&mut r)? as usize;
        if len > MAX_ENTRY_BYTES {
            // Not "unexpected end of file", which would pass for a torn end.
            let message = format!("an entry of {len} bytes, allowed are {MAX_ENTRY_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut bytes = Vec::new();
        r.take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { bytes: bytes.into(), proposed: None })
    }
}

/// A vote: term, broker, and whether a majority granted it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd)]
pub(super) struct StoredVote(pub(super) Vote);

impl Encode for StoredVote {
    fn encode<W: Write>(&self, w: W) -> io::Result<usize> {
        let vote = &self.0;
        (vote.leader_id.term, (vote.leader_id.voted_for, vote.committed)).encode(w)
    }
}

impl Decode for StoredVote {
    fn decode<R: Read>(r: R) -> io::Result<Self> {
        let (term, (broker, committed)) = <(u64, (u64, bool))>::decode(r)?;
        Ok(Self(if committed { Vote::new_committed(term, broker) } else { Vote::new(term, broker) }))
    }
}

/// Callback after an fsync.
pub(super) struct Flushed {
    pub(super) write: PendingWrite,
    pub(super) tell: Tell,
}

/// Receiver of the result.
pub(super) enum Tell {
    /// Consensus, of appended entries.
    Appended(IOFlushed<TypeConfig>),
    /// A caller that waits.
    Waiting(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        self.write.end(&result);
        match self.tell {
            Tell::Appended(callback) => callback.io_completed(result),
            // The caller may be gone.
            Tell::Waiting(sender) => drop(sender.send(result)),
        }
    }
}
