//! Fuzzes what brokers send each other, and the entries of the log, which are stored as they were sent.

use bytes::Bytes;
use comity_core::command::Expire;
use comity_core::{Command, Timestamp};
use comity_fuzz::fuzz;
use comity_proto::raft::v1::Frame;
use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use openraft::vote::leader_id_std::CommittedLeaderId;
use prost::Message as _;

use crate::replication::command_codec::encode_command;
use crate::replication::entry_codec;
use crate::replication::proposal::Proposal;
use crate::replication::types::{Entry, LogId, Proposed, Vote};
use crate::transport::frame::{
    SnapshotHeader, TransferMessage, VoteMessage, decode, decode_append, encode, encode_append,
};
use crate::transport::{ForwardReply, ForwardRequest};

fn at(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(3), index)
}

fn command() -> Bytes {
    let envelope = Proposal::of_leader(1, Command::Expire(Expire {})).at(Timestamp(7));
    encode_command(&envelope).expect("a command")
}

#[test]
fn frames_of_brokers() {
    let entries = vec![
        Entry { log_id: at(8), payload: EntryPayload::Blank },
        Entry { log_id: at(9), payload: EntryPayload::Normal(Proposed::stored(command())) },
    ];
    let append = AppendEntriesRequest {
        vote: Vote::new_committed(3, 2),
        prev_log_id: Some(at(7)),
        entries,
        leader_commit: Some(at(6)),
    };
    let append = encode_append(&append).expect("a frame").encode_to_vec();
    let proposal = Proposal::of_leader(1, Command::Expire(Expire {}));
    let forwarded = encode(&ForwardRequest::Propose { proposal, timeout_ms: 9 }).expect("a frame").encode_to_vec();
    fuzz!("raft_frame", vec![append, forwarded], |bytes: &[u8]| {
        let Ok(frame) = Frame::decode(bytes) else { return false };
        if let Ok(forwarded) = decode::<ForwardRequest>(&frame.payload) {
            let again = encode(&forwarded).expect("what was read can be written");
            decode::<ForwardRequest>(&again.payload).expect("and read again");
            return true;
        }
        let _ = decode::<ForwardReply>(&frame.payload);
        let _ = decode::<VoteMessage>(&frame.payload);
        let _ = decode::<TransferMessage>(&frame.payload);
        let _ = decode::<SnapshotHeader>(&frame.payload);
        decode_append(frame).is_ok()
    });
}

#[test]
fn entries_of_the_log() {
    fuzz!("log_entry", vec![command().to_vec()], |bytes: &[u8]| {
        match entry_codec::decode(at(1), Bytes::copy_from_slice(bytes)) {
            Ok(Entry { payload: EntryPayload::Normal(proposed), .. }) => proposed.take().is_ok(),
            Ok(_) => true,
            Err(_) => false,
        }
    });
}
