//! TLS configuration of clients: trusted servers and own identity.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::SignatureScheme;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::ALPN;
use super::verify_server::{ServerVerifier, Trust};
use crate::crypto;
use crate::identity::{RootHash, TlsIdentity, TrustedRoots};
use crate::spiffe::{SpiffeId, TrustDomain};

/// TLS for connections to brokers. Cheap to clone. Each new connection presents the newest identity.
#[derive(Debug, Clone)]
pub struct ClientTls {
    verifier: ServerVerifier,
    identity: Option<watch::Receiver<TlsIdentity>>,
}

impl ClientTls {
    /// Presents the newest identity of the channel and trusts the federation's brokers.
    pub fn new(roots: impl Into<TrustedRoots>, identity: watch::Receiver<TlsIdentity>) -> Self {
        Self {
            verifier: ServerVerifier { trust: Trust::Roots(roots.into()), expected: None },
            identity: Some(identity),
        }
    }

    /// Presents no certificate and trusts the federation's brokers.
    pub fn anonymous(roots: impl Into<TrustedRoots>) -> Self {
        Self { verifier: ServerVerifier { trust: Trust::Roots(roots.into()), expected: None }, identity: None }
    }

    /// For joining: presents no certificate and trusts brokers whose root has the pinned hash.
    pub const fn pinned(pin: RootHash, trust_domain: TrustDomain) -> Self {
        Self { verifier: ServerVerifier { trust: Trust::Pinned { pin, trust_domain }, expected: None }, identity: None }
    }

    /// Trusts only this server. For Raft peers.
    #[must_use]
    pub fn expecting(mut self, server: SpiffeId) -> Self {
        self.verifier.expected = Some(server);
        self
    }

    /// A receiver of the presented identity. Separate per call, so that each channel sees each change.
    pub(super) fn identity(&self) -> Option<watch::Receiver<TlsIdentity>> {
        self.identity.clone().map(|mut identity| {
            identity.mark_unchanged();
            identity
        })
    }

    pub(super) fn config(&self) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(crypto::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring supports TLS 1.3")
            // rustls calls any custom verifier dangerous. This one checks more than the default.
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier.clone()));
        let mut config = match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(NewestClientIdentity(identity.clone()))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        config
    }
}

#[derive(Debug)]
struct NewestClientIdentity(watch::Receiver<TlsIdentity>);

impl ResolvesClientCert for NewestClientIdentity {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().certified_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
