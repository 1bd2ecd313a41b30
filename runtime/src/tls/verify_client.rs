//! The server's look at a client: chain to the federation's root, then the trust domain.

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

#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    mandatory: bool,
    refused: RefusedForTime,
}

impl ClientVerifier {
    pub(super) fn new(roots: &Roots, mandatory: bool, refused: RefusedForTime) -> Self {
        let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), crypto::provider());
        let chain = builder.build().expect("the store holds one root and no revocation lists");
        Self { chain, trust_domain: roots.trust_domain().clone(), mandatory, refused }
    }

    /// Takes note of a client whose certificate is good but for its time: nobody else can make this server believe that
    /// its clock is off.
    fn note_refusal(&self, error: &rustls::Error, leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) {
        use CertificateError::{ExpiredContext, NotValidYetContext};
        let rustls::Error::InvalidCertificate(ExpiredContext { .. } | NotValidYetContext { .. }) = error else {
            return;
        };
        let Ok(facts) = CertificateFacts::of(leaf) else { return };
        let begun = facts.not_before.duration_since(UNIX_EPOCH).unwrap_or_default();
        let good = self.chain.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(begun));
        if good.is_ok() && *facts.id.trust_domain() == self.trust_domain {
            self.refused.note(facts.id);
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
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
            .inspect_err(|error| self.note_refusal(error, leaf, intermediates))
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
