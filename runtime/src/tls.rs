//! Mutual TLS between Comity processes: TLS 1.3 only, SPIFFE ids instead of host names, identities
//! that rotate while connections stay open.
//!
//! ```text
//!   client: connect() ─▶ Connector ─▶ TCP to each endpoint in turn ─▶ ServerVerifier ─▶ Channel
//!   server: incoming() ─▶ accept ─▶ handshake (bounded, 3 s) ─▶ ClientVerifier ─▶ PeerInfo ─▶ tonic
//! ```
//!
//! A connection keeps its identities. After a renewal, [`BrokerChannel`] opens a new connection for new calls, while
//! open streams continue. It does the same, and repeats the call, if a broker redirects it ([`ELSEWHERE_METADATA`]).
//! Answers name all brokers ([`BROKERS_METADATA`]), so that a client learns of brokers that joined later
//! ([`KnownBrokers`]). Servers refuse calls under an expired certificate with [`PeerInfo::has_expired`]. Sessions are
//! never resumed, because resumption would skip the check of the expiry.

mod admission;
mod channel;
mod client;
mod connector;
mod endpoints;
mod incoming;
mod keyed_slots;
mod known_brokers;
mod open_calls;
mod peer;
mod redirect;
mod refusal;
mod server;
mod source_address;
mod validity;
mod verify_client;
mod verify_server;

pub use admission::ConnectionShares;
pub use channel::{BrokerChannel, ChannelOptions, connect, connect_with};
pub use client::ClientTls;
pub use connector::{ClientStream, ConnectError, DialError, dial};
pub use endpoints::{BrokerEndpoints, EndpointError, MAX_ENDPOINTS};
pub use incoming::{IdleConnections, Incoming, IncomingLimits, incoming};
pub use keyed_slots::{HeldSlots, KeyedSlots, SlotLimit};
pub use known_brokers::{BROKERS_METADATA, BrokerLists, KnownBrokers};
pub use open_calls::{OpenCall, OpenCalls};
pub use peer::PeerInfo;
pub use redirect::ELSEWHERE_METADATA;
pub use refusal::Refusal;
pub use server::{HandshakeError, IdleLimits, ServerConnection, ServerTls};
pub use source_address::SourceAddress;
pub use validity::RefusedForTime;
pub use verify_client::{ClientCertificates, VerifiedChain};

/// The application protocol: gRPC runs over HTTP/2.
const ALPN: &[u8] = b"h2";
/// Spoken by simple clients of the JSON API.
const ALPN_HTTP1: &[u8] = b"http/1.1";

#[cfg(test)]
mod connection_tests;
