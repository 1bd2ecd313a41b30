//! What a process shows to its peers (a key and a certificate with a SPIFFE id), and whom it trusts.
//!
//! [`IdentityDir`] keeps it on disk, [`IdentitySource`] hands the newest one to every connection.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::sync::watch;

use crate::atomic_file::FileError;
use crate::ca::BACKDATE;
use crate::crypto;
use crate::secret::SecretString;
use crate::spiffe::{SpiffeError, SpiffeId, TrustDomain};

mod certificate;
mod dir;
mod roots;

pub(crate) use certificate::CertificateFacts;
pub use dir::IdentityDir;
pub use roots::{RootHash, Roots};

/// Most certificates in one chain file.
pub(crate) const CHAIN_MAX_CERTIFICATES: usize = 4;
/// Largest PEM file that is read.
pub(crate) const PEM_MAX_BYTES: u64 = 64 * 1024;

/// Why an identity cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text holds no usable PEM block of the kind wanted.
    #[error("{what} is not usable PEM: {reason}")]
    Pem {
        /// `certificate chain`, `private key`, `root certificate`.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be understood.
    #[error("cannot read the certificate: {reason}")]
    Certificate {
        /// What is wrong.
        reason: String,
    },
    /// A certificate says no SPIFFE id of ours.
    #[error("the certificate carries no valid SPIFFE id: {0}")]
    Spiffe(#[from] SpiffeError),
    /// A certificate has no URI name, or several.
    #[error("the certificate carries {found} URI names, want exactly one SPIFFE id")]
    UriNames {
        /// How many it has.
        found: usize,
    },
    /// Key and certificate are of different pairs.
    #[error("the private key does not belong to the certificate of {id}: {reason}")]
    KeyMismatch {
        /// Whose certificate it is.
        id: SpiffeId,
        /// What the TLS library said; never the key.
        reason: String,
    },
    /// Certificate and root are of different federations.
    #[error(
        "the certificate is of trust domain '{found}', the root certificate of '{expected}': join again, or restore the files that belong together"
    )]
    OtherTrustDomain {
        /// The root's.
        expected: TrustDomain,
        /// The certificate's.
        found: TrustDomain,
    },
    /// The root certificate is not the pinned one.
    #[error(
        "the root certificate has SHA-256 {found}, the join token pins {expected}: the broker that answered is not of that federation"
    )]
    Pin {
        /// From the token.
        expected: RootHash,
        /// Of the certificate at hand.
        found: RootHash,
    },
}

/// An identity as files hold it.
#[derive(Clone)]
pub struct IdentityPem {
    /// PKCS #8.
    pub key: SecretString,
    /// Leaf first, root last.
    pub chain: String,
    /// The federation's root.
    pub ca: String,
}

impl fmt::Debug for IdentityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityPem").field("chain", &self.chain).finish_non_exhaustive()
    }
}

/// A key with its certificate, checked and ready for TLS. Cheap to clone.
#[derive(Clone)]
pub struct TlsIdentity(Arc<Inner>);

struct Inner {
    key: Arc<CertifiedKey>,
    facts: CertificateFacts,
}

impl TlsIdentity {
    /// Checks that key, certificate and root belong together.
    ///
    /// # Errors
    /// [`IdentityError`] where they do not, or one of them is unreadable. An expired certificate is
    /// accepted here: the peer refuses it, and renewal still needs the files.
    pub fn from_pem(pem: &IdentityPem) -> Result<Self, IdentityError> {
        let chain = certificates("certificate chain", &pem.chain)?;
        let leaf = chain.first().ok_or_else(|| pem_error("certificate chain", "it holds no certificate"))?;
        let facts = CertificateFacts::of(leaf)?;
        let roots = Roots::from_pem(&pem.ca)?;
        if facts.id.trust_domain() != roots.trust_domain() {
            return Err(IdentityError::OtherTrustDomain {
                expected: roots.trust_domain().clone(),
                found: facts.id.trust_domain().clone(),
            });
        }
        let key = PrivateKeyDer::from_pem_slice(pem.key.expose().as_bytes())
            // The library's message may quote the text; a key is never quoted.
            .map_err(|_| pem_error("private key", "want a PKCS #8 'PRIVATE KEY' block"))?;
        let mismatch =
            |error: rustls::Error| IdentityError::KeyMismatch { id: facts.id.clone(), reason: error.to_string() };
        let signing = rustls::crypto::ring::sign::any_supported_type(&key).map_err(mismatch)?;
        let key = CertifiedKey::new(chain, signing);
        key.keys_match().map_err(mismatch)?;
        Ok(Self(Arc::new(Inner { key: Arc::new(key), facts })))
    }

    /// Whose it is.
    pub fn id(&self) -> &SpiffeId {
        &self.0.facts.id
    }

    /// When the certificate begins to be valid.
    pub fn not_before(&self) -> SystemTime {
        self.0.facts.not_before
    }

    /// When the certificate ends.
    pub fn not_after(&self) -> SystemTime {
        self.0.facts.not_after
    }

    /// When to ask for the next one: after two thirds of its life, so that a third is left for a
    /// broker group that is away.
    pub fn renew_at(&self) -> SystemTime {
        // It was made to begin in the past; its life is counted from when it was issued.
        let issued = (self.not_before() + BACKDATE).min(self.not_after());
        let life = self.not_after().duration_since(issued).unwrap_or(Duration::ZERO);
        issued + life * 2 / 3
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.key)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity")
            .field("id", &self.id().to_string())
            .field("not_after", &self.not_after())
            .finish_non_exhaustive()
    }
}

/// The newest identity of this process. Whoever renews calls [`update`](Self::update); servers and
/// clients hold [`subscribe`](Self::subscribe) and show the newest one at each new connection.
#[derive(Debug, Clone)]
pub struct IdentitySource(Arc<watch::Sender<TlsIdentity>>);

impl IdentitySource {
    /// Begins with an identity.
    pub fn new(identity: TlsIdentity) -> Self {
        Self(Arc::new(watch::Sender::new(identity)))
    }

    /// Shows another identity from the next connection on; open connections keep theirs.
    pub fn update(&self, identity: TlsIdentity) {
        self.0.send_replace(identity);
    }

    /// The identity now.
    pub fn current(&self) -> TlsIdentity {
        self.0.borrow().clone()
    }

    /// Follows the identity.
    pub fn subscribe(&self) -> watch::Receiver<TlsIdentity> {
        self.0.subscribe()
    }
}

fn pem_error(what: &'static str, reason: impl fmt::Display) -> IdentityError {
    IdentityError::Pem { what, reason: reason.to_string() }
}

pub(crate) fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        if chain.len() == CHAIN_MAX_CERTIFICATES {
            let reason = format!("it holds more than {CHAIN_MAX_CERTIFICATES} certificates");
            return Err(pem_error(what, reason));
        }
        chain.push(certificate.map_err(|error| pem_error(what, error))?);
    }
    Ok(chain)
}

/// The signature algorithms that every configuration here accepts.
pub(crate) fn algorithms() -> rustls::crypto::WebPkiSupportedAlgorithms {
    crypto::provider().signature_verification_algorithms
}
