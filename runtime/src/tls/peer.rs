//! The peer of a connection.

use std::net::SocketAddr;
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;

use super::open_calls::OpenCalls;
use super::verify_client::VerifiedChain;
use crate::identity::{CertificateFacts, TrustedRoots};
use crate::spiffe::SpiffeId;

/// The peer of a connection. tonic puts it into the extensions of every request.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// SPIFFE id of the verified client certificate; `None` without certificate.
    pub spiffe: Option<SpiffeId>,
    /// Address of the peer. Proves no identity.
    pub remote_addr: SocketAddr,
    /// End of the certificate's validity; `None` without certificate.
    pub cert_not_after: Option<SystemTime>,
    /// Generation of the certificate; 0 without certificate.
    pub generation: u64,
    /// What the certificate was verified with; `None` without certificate.
    pub chain: Option<VerifiedChain>,
    /// Calls in progress on the connection. The server counts them, so that an idle connection can close.
    pub calls: OpenCalls,
}

impl PeerInfo {
    /// A peer without a certificate.
    pub fn anonymous(remote_addr: SocketAddr) -> Self {
        Self {
            spiffe: None,
            remote_addr,
            cert_not_after: None,
            generation: 0,
            chain: None,
            calls: OpenCalls::default(),
        }
    }

    /// Reads a chain that the TLS library has verified.
    pub(super) fn of(chain: Option<&[CertificateDer<'_>]>, roots: &TrustedRoots, remote_addr: SocketAddr) -> Self {
        let facts = chain.and_then(<[_]>::first).and_then(|leaf| CertificateFacts::of(leaf).ok());
        let Some(facts) = facts else { return Self::anonymous(remote_addr) };
        Self {
            spiffe: Some(facts.id),
            cert_not_after: Some(facts.not_after),
            generation: facts.generation,
            chain: chain.map(|chain| VerifiedChain::new(chain, roots)),
            ..Self::anonymous(remote_addr)
        }
    }

    /// Whether the certificate has expired, while the connection stayed open.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.cert_not_after.is_some_and(|end| end <= now)
    }

    /// Whether a root that is trusted now signed the certificate. The roots may change while the connection stays open.
    pub fn is_trusted(&self) -> bool {
        self.chain.as_ref().is_none_or(VerifiedChain::is_trusted)
    }
}
