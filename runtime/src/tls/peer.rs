//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;

use crate::identity::CertificateFacts;
use crate::spiffe::SpiffeId;

/// The verified peer; tonic puts it into the extensions of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// From the verified client certificate; `None` where the client showed none.
    pub spiffe: Option<SpiffeId>,
    /// Where the connection comes from; says nothing about who it is.
    pub remote_addr: SocketAddr,
    /// When the certificate ends; `None` where the client showed none.
    pub cert_not_after: Option<SystemTime>,
}

impl PeerInfo {
    /// Reads a chain that the TLS library has verified already.
    pub(super) fn of(chain: Option<&[CertificateDer<'_>]>, remote_addr: SocketAddr) -> Self {
        let facts = chain.and_then(<[_]>::first).and_then(|leaf| CertificateFacts::of(leaf).ok());
        let (spiffe, cert_not_after) = facts.map(|f| (f.id, f.not_after)).unzip();
        Self { spiffe, remote_addr, cert_not_after }
    }

    /// Whether the certificate ended while the connection stayed open.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.cert_not_after.is_some_and(|end| end <= now)
    }
}
