//! Verifies client certificates: the chain to the federation's root, then the trust domain.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::refusal::Refusal;
use super::validity::RefusedForTime;
use crate::crypto;
use crate::identity::{CertificateFacts, Roots};
use crate::spiffe::TrustDomain;

/// Whether clients must present a certificate. A presented one is always verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// For servers with calls that need none (join and health). Authorisation refuses all other calls without one.
    Optional,
    /// For Raft among brokers.
    Required,
}

#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    certificates: ClientCertificates,
    refused: RefusedForTime,
}

impl ClientVerifier {
    pub(super) fn new(roots: &Roots, certificates: ClientCertificates, refused: RefusedForTime) -> Self {
        let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), crypto::provider());
        let chain = builder.build().expect("the store has one root and no revocation lists");
        Self { chain, trust_domain: roots.trust_domain().clone(), certificates, refused }
    }

    /// Records the refusal of a client whose certificate would be valid at another time. Ignores other certificates, so
    /// that no stranger can make this server distrust its clock.
    fn record_refusal(&self, error: &rustls::Error, leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) {
        use CertificateError::{ExpiredContext, NotValidYetContext};
        let rustls::Error::InvalidCertificate(ExpiredContext { .. } | NotValidYetContext { .. }) = error else {
            return;
        };
        let Ok(facts) = CertificateFacts::of(leaf) else { return };
        let start = facts.not_before.duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = self.chain.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(start));
        if verified.is_ok() && *facts.id.trust_domain() == self.trust_domain {
            self.refused.record(facts.id);
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.certificates == ClientCertificates::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.chain
            .verify_client_cert(leaf, intermediates, now)
            .inspect_err(|error| self.record_refusal(error, leaf, intermediates))
            .map_err(|error| Refusal::explain(error, leaf, &self.trust_domain))?;
        let id = CertificateFacts::of(leaf).map_err(Refusal::from)?.id;
        if *id.trust_domain() != self.trust_domain {
            let trust_domain = self.trust_domain.clone();
            return Err(Refusal::OtherTrustDomain { id, trust_domain }.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
