//! Verifies server certificates: the chain to the known or pinned root, then the SPIFFE id. Ignores host names.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::refusal::Refusal;
use crate::identity::{CertificateFacts, RootHash, Roots, signature_algorithms};
use crate::spiffe::{SpiffeId, TrustDomain};

/// The trusted root.
#[derive(Debug, Clone)]
pub(super) enum Trust {
    /// A known root.
    Roots(Roots),
    /// Any presented root with the hash that the join token pins.
    Pinned { pin: RootHash, trust_domain: TrustDomain },
}

#[derive(Debug, Clone)]
pub(super) struct ServerVerifier {
    pub(super) trust: Trust,
    /// The only trusted server; `None` for any broker of the federation.
    pub(super) expected: Option<SpiffeId>,
}

impl ServerVerifier {
    fn trust_domain(&self) -> &TrustDomain {
        match &self.trust {
            Trust::Roots(roots) => roots.trust_domain(),
            Trust::Pinned { trust_domain, .. } => trust_domain,
        }
    }

    fn roots(&self, presented: &[CertificateDer<'_>]) -> Result<Roots, Refusal> {
        match &self.trust {
            Trust::Roots(roots) => Ok(roots.clone()),
            Trust::Pinned { pin, .. } => {
                let pinned = presented.iter().find(|certificate| RootHash::of(certificate) == *pin);
                let root = pinned.ok_or(Refusal::Pin { pin: *pin })?;
                Ok(Roots::from_der(root.clone().into_owned())?)
            }
        }
    }

    fn check_id(&self, id: SpiffeId) -> Result<(), Refusal> {
        if id.trust_domain() != self.trust_domain() {
            let trust_domain = self.trust_domain().clone();
            return Err(Refusal::OtherTrustDomain { id, trust_domain });
        }
        match &self.expected {
            Some(expected) if *expected != id => Err(Refusal::OtherServer { expected: expected.clone(), found: id }),
            None if id.as_broker().is_none() => Err(Refusal::NotABroker { id }),
            Some(_) | None => Ok(()),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let roots = self.roots(intermediates)?;
        let parsed = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots.store(),
            intermediates,
            now,
            signature_algorithms().all,
        )
        .map_err(|error| Refusal::explain(error, leaf, self.trust_domain()))?;
        self.check_id(CertificateFacts::of(leaf).map_err(Refusal::from)?.id)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, leaf, signed, &signature_algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signed, &signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}
