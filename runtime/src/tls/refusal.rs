//! Why a peer's certificate was refused, in words for the operator.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::{CertificateError, OtherError};
use thiserror::Error;

use super::validity;
use crate::identity::{CertificateFacts, IdentityError, RootHash, TlsIdentity};
use crate::spiffe::{SpiffeId, TrustDomain};

/// A reason that the TLS library does not know.
#[derive(Debug, Error)]
pub enum Refusal {
    /// A certificate of another federation.
    #[error("certificate of '{id}' is of another federation: this one is '{trust_domain}'")]
    OtherTrustDomain {
        /// Whom the certificate names; not verified where its root is unknown too.
        id: SpiffeId,
        /// Ours.
        trust_domain: TrustDomain,
    },
    /// The right trust domain under a root that is not ours: a federation created again, or a forger.
    #[error(
        "certificate of '{id}' is not signed by the root of this federation: join again, or look for who claims to be it"
    )]
    OtherRoot {
        /// Whom the certificate names, not verified.
        id: SpiffeId,
    },
    /// A server that is no broker.
    #[error("server is '{id}', want a broker")]
    NotABroker {
        /// Who answered.
        id: SpiffeId,
    },
    /// A server that is somebody else.
    #[error("server is '{found}', want '{expected}'")]
    OtherServer {
        /// Who was wanted.
        expected: SpiffeId,
        /// Who answered.
        found: SpiffeId,
    },
    /// No certificate in the chain hashes to the pin.
    #[error(
        "server shows no root certificate with the SHA-256 {pin} that the join token pins: it is not a broker of that federation"
    )]
    Pin {
        /// From the token.
        pin: RootHash,
    },
    /// A certificate without one SPIFFE id.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

impl Refusal {
    /// Replaces "unknown issuer" by what most often is behind it; keeps every other error.
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

    /// The TLS error as a sentence: our own reason where there is one. `shown` is the identity that this side showed.
    pub(super) fn describe(error: &io::Error, shown: Option<&TlsIdentity>) -> String {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))) => reason.to_string(),
            Some(rustls::Error::InvalidCertificate(invalid)) => {
                validity::describe(invalid).unwrap_or_else(|| invalid.to_string())
            }
            Some(rustls::Error::AlertReceived(alert)) => validity::describe_alert(*alert, shown, SystemTime::now())
                .unwrap_or_else(|| format!("the peer refused this side's certificate or protocol ({alert:?})")),
            Some(other) => other.to_string(),
            None => error.to_string(),
        }
    }

    /// Whether the other side is not who was wanted. A certificate that has ended, or has yet to begin, is not meant:
    /// it may be replaced, or a clock put right.
    pub(super) fn is_of_identity(error: &io::Error) -> bool {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        matches!(tls, Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))))
    }

    /// Whether the handshake failed over a certificate, not over the network.
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
