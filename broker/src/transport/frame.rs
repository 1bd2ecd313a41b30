//! Encodes and decodes message payloads.

use comity_proto::raft::v1::{Frame, LogEntry};
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::vote::leader_id_std::CommittedLeaderId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::replication::entry_codec;
use crate::replication::types::{Entry, LogId, SnapshotMeta, TypeConfig, Vote};

/// Maximum bytes of one message: the largest entry or a batch of small ones, with headers.
pub(crate) const MAX_PEER_MESSAGE_BYTES: usize = 32 << 20;
/// Bytes of a snapshot in one message.
pub(crate) const SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;

/// A vote or pre-vote request.
#[derive(Serialize, Deserialize)]
pub(crate) struct VoteMessage {
    pub(crate) pre_vote: bool,
    pub(crate) request: VoteRequest<TypeConfig>,
    /// The leader whose process the candidate found ended, if that is why it stands.
    pub(crate) leader_gone: Option<u64>,
}

/// An append request without its entries, which the frame carries as stored bytes.
#[derive(Serialize, Deserialize)]
struct AppendHeader {
    vote: Vote,
    prev_log_id: Option<LogId>,
    leader_commit: Option<LogId>,
}

/// A leadership transfer; openraft's own request cannot be serialized.
#[derive(Serialize, Deserialize)]
pub(crate) struct TransferMessage {
    pub(crate) from_leader: Vote,
    pub(crate) to: u64,
    pub(crate) last_log_id: Option<LogId>,
}

/// First message of a snapshot.
#[derive(Serialize, Deserialize)]
pub(crate) struct SnapshotHeader {
    pub(crate) vote: Vote,
    pub(crate) meta: SnapshotMeta,
}

/// A message that names its sender.
pub(crate) trait Vouched {
    /// The broker that must have sent it.
    fn sender(&self) -> u64;
}

impl Vouched for Vote {
    fn sender(&self) -> u64 {
        self.leader_id.voted_for
    }
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Frame, Status> {
    let payload =
        serde_json::to_vec(message).map_err(|error| Status::internal(format!("cannot be written: {error}")))?;
    if payload.len() > MAX_PEER_MESSAGE_BYTES {
        let text = format!("a message of {} bytes, allowed are {}", payload.len(), MAX_PEER_MESSAGE_BYTES);
        return Err(Status::resource_exhausted(text));
    }
    Ok(Frame { payload, entries: Vec::new() })
}

/// Encodes an append request without re-encoding its entries.
pub(crate) fn encode_append(message: &AppendEntriesRequest<TypeConfig>) -> Result<Frame, Status> {
    let AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = message;
    let header = AppendHeader { vote: *vote, prev_log_id: *prev_log_id, leader_commit: *leader_commit };
    let mut frame = encode(&header)?;
    frame.entries = entries.iter().map(encode_entry).collect::<Result<_, _>>()?;
    let bytes = frame.entries.iter().map(|entry| entry.payload.len()).sum::<usize>();
    if bytes > MAX_PEER_MESSAGE_BYTES {
        let text = format!("entries of {bytes} bytes, allowed are {}", MAX_PEER_MESSAGE_BYTES);
        return Err(Status::resource_exhausted(text));
    }
    Ok(frame)
}

fn encode_entry(entry: &Entry) -> Result<LogEntry, Status> {
    let payload = entry_codec::encode(entry)
        .map_err(|error| Status::internal(format!("entry {} cannot be written: {error}", entry.log_id)))?;
    Ok(LogEntry { term: entry.log_id.leader_id.term, index: entry.log_id.index, payload })
}

/// Decodes the output of [`encode_append`].
pub(crate) fn decode_append(frame: Frame) -> Result<AppendEntriesRequest<TypeConfig>, Status> {
    let AppendHeader { vote, prev_log_id, leader_commit } = decode(&frame.payload)?;
    let entries = frame.entries.into_iter().map(|LogEntry { term, index, payload }| {
        entry_codec::decode(LogId::new(CommittedLeaderId::new(term), index), payload)
    });
    let entries =
        entries.collect::<Result<_, _>>().map_err(|error| Status::invalid_argument(format!("entries: {error}")))?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(payload)
        .map_err(|error| Status::invalid_argument(format!("payload cannot be read: {error}")))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use bytes::Bytes;
    use openraft::EntryPayload;
    use prost::Message as _;

    use super::*;
    use crate::replication::types::Proposed;

    fn at(index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(3), index)
    }

    fn append(bytes: &'static str) -> AppendEntriesRequest<TypeConfig> {
        let command = EntryPayload::Normal(Proposed::stored(Bytes::from_static(bytes.as_bytes())));
        let entries =
            vec![Entry { log_id: at(8), payload: EntryPayload::Blank }, Entry { log_id: at(9), payload: command }];
        AppendEntriesRequest {
            vote: Vote::new_committed(3, 2),
            prev_log_id: Some(at(7)),
            entries,
            leader_commit: Some(at(6)),
        }
    }

    #[test]
    fn entries_arrive_as_the_bytes_that_were_sent() {
        let bytes = r#"{"command":{"format":1,"actor":{"leader":1},"#;
        let sent = encode_append(&append(bytes)).unwrap().encode_to_vec();
        let message = decode_append(Frame::decode(Bytes::from(sent)).unwrap()).unwrap();
        assert_eq!(message.vote, Vote::new_committed(3, 2));
        assert_eq!((message.prev_log_id, message.leader_commit), (Some(at(7)), Some(at(6))));
        assert_eq!(message.entries.iter().map(|entry| entry.log_id).collect::<Vec<_>>(), [at(8), at(9)]);
        let EntryPayload::Normal(command) = &message.entries[1].payload else { panic!("not a command") };
        assert_eq!(command.bytes(), bytes.as_bytes());
    }

    #[test]
    fn entries_of_a_later_release_are_refused_before_they_are_stored() {
        let frame = encode_append(&append(r#"{"command":{"format":99,"command":{"teleport":{}}}}"#)).unwrap();
        let status = decode_append(frame).unwrap_err();
        assert!(status.message().contains("format 99"), "{status}");
    }
}
