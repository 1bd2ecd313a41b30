//! Payloads of frames.

use comity_proto::raft::v1::Frame;
use openraft::raft::VoteRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::group::raft_types::{LogId, SnapshotMeta, TypeConfig, Vote};

/// A request for a vote, or the question whether one would be granted.
#[derive(Serialize, Deserialize)]
pub(super) struct VoteMessage {
    pub(super) pre_vote: bool,
    pub(super) request: VoteRequest<TypeConfig>,
    /// The leader whose process the candidate found to have ended, where that is why it stands.
    pub(super) leader_gone: Option<u64>,
}

/// openraft's own request has no text form.
#[derive(Serialize, Deserialize)]
pub(super) struct TransferMessage {
    pub(super) from_leader: Vote,
    pub(super) to: u64,
    pub(super) last_log_id: Option<LogId>,
}

/// Begins a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct SnapshotHeader {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta,
}

/// A message in whose name a broker speaks.
pub(super) trait Vouched {
    /// The broker that must have sent it.
    fn sender(&self) -> u64;
}

impl Vouched for Vote {
    fn sender(&self) -> u64 {
        self.leader_id.voted_for
    }
}

pub(super) fn encode<T: Serialize>(message: &T) -> Result<Frame, Status> {
    let payload =
        serde_json::to_vec(message).map_err(|error| Status::internal(format!("cannot be written: {error}")))?;
    if payload.len() > super::MAX_MESSAGE_BYTES {
        let text = format!("a message of {} bytes, allowed are {}", payload.len(), super::MAX_MESSAGE_BYTES);
        return Err(Status::resource_exhausted(text));
    }
    Ok(Frame { payload })
}

pub(super) fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(payload)
        .map_err(|error| Status::invalid_argument(format!("payload cannot be read: {error}")))
}
