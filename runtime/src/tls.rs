//! Mutual TLS between Comity processes: TLS 1.3 only, SPIFFE ids instead of host names, identities
//! that rotate while connections stay open.
//!
//! ```text
//!   client: connect() ─▶ Connector ─▶ TCP to each endpoint in turn ─▶ ServerVerifier ─▶ Channel
//!   server: incoming() ─▶ accept ─▶ handshake (bounded, 5 s) ─▶ ClientVerifier ─▶ PeerInfo ─▶ tonic
//! ```
//!
//! A connection keeps the identities it began with. After a renewal [`BrokerChannel`] makes its next call on a new
//! connection, and streams that are open go on. It does the same where a broker says that another may do better
//! ([`ELSEWHERE_METADATA`]), and makes that call again there. A server that wants no calls under an ended certificate
//! asks [`PeerInfo::has_expired`]. Sessions are never resumed, for a resumed one would skip the check of the
//! certificate's end.

mod channel;
mod client;
mod connector;
mod elsewhere;
mod endpoints;
mod incoming;
mod peer;
mod refusal;
mod server;
mod validity;
mod verify_client;
mod verify_server;

pub use channel::{BrokerChannel, ChannelOptions, connect, connect_with};
pub use client::ClientTls;
pub use connector::{ClientStream, ConnectError, DialError, dial};
pub use elsewhere::ELSEWHERE_METADATA;
pub use endpoints::{BrokerEndpoints, EndpointError, MAX_ENDPOINTS};
pub use incoming::{Incoming, IncomingLimits, incoming};
pub use peer::PeerInfo;
pub use refusal::Refusal;
pub use server::{ClientCertificates, HandshakeError, ServerConnection, ServerTls};
pub use validity::RefusedForTime;

/// gRPC is HTTP/2.
const ALPN: &[u8] = b"h2";

#[cfg(test)]
mod tests;
