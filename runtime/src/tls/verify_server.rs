//! Verifies server certificates: the chain through an intermediate to a known or pinned root, then the SPIFFE id.
//! Ignores host names.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::refusal::Refusal;
use crate::identity::{CertificateFacts, RootHash, Roots, TrustedRoots, signature_algorithms};
use crate::spiffe::{SpiffeId, TrustDomain};

/// The trusted roots.
#[derive(Debug, Clone)]
pub(super) enum Trust {
    /// Known roots.
    Roots(TrustedRoots),
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
    fn roots(&self, id: &SpiffeId, presented: &[CertificateDer<'_>]) -> Result<Roots, Refusal> {
        match &self.trust {
            Trust::Roots(roots) => Ok(roots.current()),
            Trust::Pinned { trust_domain, .. } if id.trust_domain() != trust_domain => {
                Err(Refusal::OtherTrustDomain { id: id.clone(), trust_domain: trust_domain.clone() })
            }
            Trust::Pinned { pin, trust_domain } => {
                let pinned = presented.iter().find(|certificate| RootHash::of(certificate) == *pin);
                let root = pinned.ok_or(Refusal::Pin { pin: *pin })?;
                Ok(Roots::of(vec![root.clone().into_owned()], trust_domain)?)
            }
        }
    }

    fn check_id(&self, id: SpiffeId, trust_domain: &TrustDomain) -> Result<(), Refusal> {
        if id.trust_domain() != trust_domain {
            return Err(Refusal::OtherTrustDomain { id, trust_domain: trust_domain.clone() });
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
        let id = CertificateFacts::of(leaf).map_err(Refusal::from)?.id;
        let roots = self.roots(&id, intermediates)?;
        roots
            .verify_server(leaf, &roots.authorities(intermediates), now)
            .map_err(|error| Refusal::explain(error, leaf, roots.trust_domain()))?;
        if roots.verify_server(leaf, &[], now).is_ok() {
            return Err(Refusal::SignedByRoot { id }.into());
        }
        self.check_id(id, roots.trust_domain())?;
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
