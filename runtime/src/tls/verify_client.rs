//! Verifies client certificates: the chain through an intermediate to the federation's root, then the trust domain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::refusal::Refusal;
use super::validity::RefusedForTime;
use crate::crypto;
use crate::identity::{AuthorityFacts, CertificateFacts, Roots, TrustedRoots, signature_algorithms};

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
    roots: TrustedRoots,
    certificates: ClientCertificates,
    refused: RefusedForTime,
}

impl ClientVerifier {
    pub(super) const fn new(roots: TrustedRoots, certificates: ClientCertificates, refused: RefusedForTime) -> Self {
        Self { roots, certificates, refused }
    }

    /// Records the refusal of a client whose certificate would be valid at another time. Ignores other certificates, so
    /// that no stranger can make this server distrust its clock.
    fn record_refusal(&self, error: &rustls::Error, chain: &Chain<'_>) {
        use CertificateError::{ExpiredContext, NotValidYetContext};
        let rustls::Error::InvalidCertificate(ExpiredContext { .. } | NotValidYetContext { .. }) = error else {
            return;
        };
        let Ok(facts) = CertificateFacts::of(chain.leaf) else { return };
        let authorities = chain.authorities.iter().filter_map(|certificate| AuthorityFacts::of(certificate).ok());
        let start = authorities.map(|authority| authority.not_before).fold(facts.not_before, SystemTime::max);
        let start = start.duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = chain.verify(&chain.authorities, UnixTime::since_unix_epoch(start));
        if verified.is_ok() && facts.id.trust_domain() == chain.roots.trust_domain() {
            self.refused.record(facts.id);
        }
    }
}

/// A presented chain, and the roots that are trusted now.
struct Chain<'a> {
    leaf: &'a CertificateDer<'a>,
    authorities: Vec<CertificateDer<'a>>,
    roots: &'a Roots,
}

impl Chain<'_> {
    fn verify(&self, authorities: &[CertificateDer<'_>], now: UnixTime) -> Result<(), rustls::Error> {
        let builder = WebPkiClientVerifier::builder_with_provider(self.roots.store(), crypto::provider());
        let verifier = builder.build().map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_client_cert(self.leaf, authorities, now).map(drop)
    }
}

/// The chain of an open connection, to verify it again when the trusted roots have changed.
#[derive(Debug, Clone)]
pub struct VerifiedChain {
    certificates: Arc<[CertificateDer<'static>]>,
    roots: TrustedRoots,
    /// The roots by which it was verified last.
    verified_by: Arc<Mutex<Arc<RootCertStore>>>,
}

impl VerifiedChain {
    /// Of a handshake that has just verified it, the leaf first.
    pub(super) fn new(certificates: &[CertificateDer<'_>], roots: &TrustedRoots) -> Self {
        let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let verified_by = Arc::new(Mutex::new(roots.current().store()));
        Self { certificates, roots: roots.clone(), verified_by }
    }

    pub(super) fn is_trusted(&self) -> bool {
        let roots = self.roots.current();
        // Nothing can fail while it is held.
        let mut verified_by = self.verified_by.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&verified_by, &roots.store()) {
            return true;
        }
        let Some((leaf, intermediates)) = self.certificates.split_first() else { return false };
        let chain = Chain { leaf, authorities: roots.authorities(intermediates), roots: &roots };
        let is_trusted = chain.verify(&chain.authorities, UnixTime::now()).is_ok();
        if is_trusted {
            *verified_by = roots.store();
        }
        is_trusted
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.certificates == ClientCertificates::Required
    }

    /// None: the roots may change, and clients have one certificate to choose from.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let roots = self.roots.current();
        let trust_domain = roots.trust_domain();
        let chain = Chain { leaf, authorities: roots.authorities(intermediates), roots: &roots };
        chain
            .verify(&chain.authorities, now)
            .inspect_err(|error| self.record_refusal(error, &chain))
            .map_err(|error| Refusal::explain(error, leaf, trust_domain))?;
        let id = CertificateFacts::of(leaf).map_err(Refusal::from)?.id;
        if id.trust_domain() != trust_domain {
            return Err(Refusal::OtherTrustDomain { id, trust_domain: trust_domain.clone() }.into());
        }
        if chain.verify(&[], now).is_ok() {
            return Err(Refusal::SignedByRoot { id }.into());
        }
        Ok(ClientCertVerified::assertion())
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
