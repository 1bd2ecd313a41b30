//! gRPC between the brokers of a group, over mutual TLS: JSON payloads, log entries as stored.
//!
//! Callers are authenticated as brokers of the federation by SPIFFE id, and may vote and append only in their own name.
//! Messages are bounded in both directions.

pub(crate) mod brokers_only;
pub(crate) mod calling_broker;
mod forward;
pub(crate) mod frame;
#[cfg(test)]
mod fuzz_frames;
pub(crate) mod headers;
mod network;
mod peers;
mod reach;
pub(crate) mod serve_snapshot;
pub(crate) mod stream_append;

pub(crate) use forward::{ForwardReply, ForwardRequest};
pub(crate) use peers::{CallError, Peers};
