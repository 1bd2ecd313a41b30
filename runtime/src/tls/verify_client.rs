//! The server's look at a client: chain to the federation's root, then the trust domain.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::refusal::Refusal;
use crate::crypto;
use crate::identity::{CertificateFacts, Roots};
use crate::spiffe::TrustDomain;

#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    mandatory: bool,
}

impl ClientVerifier {
    pub(super) fn new(roots: &Roots, mandatory: bool) -> Self {
        let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), crypto::provider());
        let chain = builder.build().expect("the store holds one root and no revocation lists");
        Self { chain, trust_domain: roots.trust_domain().clone(), mandatory }
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
