//! How the brokers of one group speak to each other: gRPC over mutual TLS, payloads as JSON, entries as the bytes that
//! each broker stores.
//!
//! Only brokers of the same federation are let in, by the SPIFFE id in their certificate; a broker speaks for itself
//! only, so that none can vote or append in another's name. Messages are bounded in bytes, both ways.

mod authorise;
mod frame;
mod headers;
mod network;
mod peers;
mod reach;
mod serve;
mod serve_snapshot;
mod stream_append;

use comity_proto::raft::v1::raft_transport_server::RaftTransportServer;

pub(crate) use peers::{CallError, Peers};
pub use serve::RaftTransportService;

use crate::group::Group;

/// Bytes of one message: the largest entry or a batch of small ones, with what goes beside them.
pub(crate) const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// Bytes of a snapshot in one message.
pub(crate) const SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;

/// The service for the Raft port. Serve it over [`comity_runtime::tls::incoming`]: it refuses every caller whose
/// connection does not say who it is.
pub fn service(group: &Group) -> RaftTransportServer<RaftTransportService> {
    RaftTransportServer::new(RaftTransportService::new(group.clone()))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}
