//! How the brokers of one group speak to each other: gRPC over mutual TLS, payloads as JSON, entries as the bytes that
//! each broker stores.
//!
//! Only brokers of the same federation are let in, by the SPIFFE id in their certificate; a broker speaks for itself
//! only, so that none can vote or append in another's name. Messages are bounded in bytes, both ways.

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
