//! Reasons for refusing a peer's certificate, in words for operators.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::{CertificateError, OtherError};
use thiserror::Error;

use super::validity;
use crate::identity::{CertificateFacts, IdentityError, RootHash, TlsIdentity};
use crate::spiffe::{SpiffeId, TrustDomain};

/// A reason of Comity's verifiers, beyond those of the TLS library.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The certificate belongs to another federation.
    #[error("certificate of '{id}' is of another federation: this one is '{trust_domain}'")]
    OtherTrustDomain {
        /// SPIFFE id of the certificate; unverified if its root is unknown.
        id: SpiffeId,
        /// Trust domain of this federation.
        trust_domain: TrustDomain,
    },
    /// Another root signed a certificate of the right trust domain: the federation was created again, or it is forged.
    #[error(
        "certificate of '{id}' is not signed by the root of this federation: the root was replaced, the federation was \
         created again, or somebody else uses its name"
    )]
    OtherRoot {
        /// SPIFFE id of the certificate, unverified.
        id: SpiffeId,
    },
    /// The root itself signed the certificate, rather than an intermediate.
    #[error("certificate of '{id}' is signed by the root itself: members have certificates of an intermediate only")]
    SignedByRoot {
        /// SPIFFE id of the certificate.
        id: SpiffeId,
    },
    /// The server is not a broker.
    #[error("server is '{id}', want a broker")]
    NotABroker {
        /// SPIFFE id of the server.
        id: SpiffeId,
    },
    /// The server is not the expected one.
    #[error("server is '{found}', want '{expected}'")]
    OtherServer {
        /// SPIFFE id of the expected server.
        expected: SpiffeId,
        /// SPIFFE id of the server.
        found: SpiffeId,
    },
    /// No certificate in the chain has the pinned hash.
    #[error(
        "server shows no root certificate with the SHA-256 {pin} that the join token pins: it is not a broker of that \
         federation"
    )]
    Pin {
        /// Hash in the join token.
        pin: RootHash,
    },
    /// The certificate has no valid SPIFFE id.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

impl Refusal {
    /// Replaces "unknown issuer" by its most likely cause; keeps other errors.
    pub(super) fn explain(
        error: rustls::Error,
        leaf: &rustls_pki_types::CertificateDer<'_>,
        trust_domain: &TrustDomain,
    ) -> rustls::Error {
        let untrusted = matches!(
            error,
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)
        );
        match CertificateFacts::of(leaf) {
            Ok(facts) if untrusted && facts.id.trust_domain() != trust_domain => {
                Self::OtherTrustDomain { id: facts.id, trust_domain: trust_domain.clone() }.into()
            }
            Ok(facts) if untrusted => Self::OtherRoot { id: facts.id }.into(),
            _ => error,
        }
    }

    /// Describes a TLS error, preferably by a reason of Comity's verifiers. `own` is the presented identity of this
    /// side.
    pub(super) fn describe(error: &io::Error, own: Option<&TlsIdentity>) -> String {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))) => reason.to_string(),
            Some(rustls::Error::InvalidCertificate(invalid)) => {
                validity::describe(invalid).unwrap_or_else(|| invalid.to_string())
            }
            Some(rustls::Error::AlertReceived(alert)) => validity::describe_alert(*alert, own, SystemTime::now())
                .unwrap_or_else(|| format!("the peer refused this side's certificate or protocol ({alert:?})")),
            Some(other) => other.to_string(),
            None => error.to_string(),
        }
    }

    /// Whether the peer has the wrong identity. Excludes expired and not yet valid certificates, which a renewal or a
    /// clock change can fix.
    pub(super) fn is_wrong_identity(error: &io::Error) -> bool {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        matches!(tls, Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))))
    }

    /// Whether the handshake failed because of a certificate rather than the network.
    pub(super) fn is_refusal(error: &io::Error) -> bool {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        matches!(
            tls,
            Some(
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::AlertReceived(_)
                    | rustls::Error::NoCertificatesPresented
            )
        )
    }
}
