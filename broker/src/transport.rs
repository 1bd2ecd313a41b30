//! gRPC between the brokers of a group, over mutual TLS: JSON payloads, log entries as stored.
//!
//! Callers are authenticated as brokers of the federation by SPIFFE id, and may vote and append only in their own name.
//! Messages are bounded in both directions.

mod calling_broker;
mod forward;
mod frame;
mod headers;
mod network;
mod peers;
mod reach;
mod serve;
mod serve_snapshot;
mod stream_append;

pub(crate) use forward::{ForwardReply, ForwardRequest};
pub(crate) use peers::{CallError, Peers};
pub use serve::{RaftTransportService, service};
