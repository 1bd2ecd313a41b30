//! The identity of a process: a key, a certificate with a SPIFFE id, and the trusted roots.
//!
//! [`IdentityDir`] stores it on disk, [`IdentitySource`] provides the newest one to every connection.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::sync::watch;

use crate::atomic_file::FileError;
use crate::crypto;
use crate::host_name::HostName;
use crate::secret::SecretString;
use crate::spiffe::{SpiffeError, SpiffeId, TrustDomain};

mod certificate;
mod dir;
mod roots;
mod succession;
mod trusted_roots;

pub(crate) use certificate::{AuthorityFacts, BACKDATE, CertificateFacts, serial_prefix};
pub use dir::IdentityDir;
pub use roots::{RootHash, Roots};
pub(crate) use succession::{dropped_root, returning_roots};
pub use trusted_roots::TrustedRoots;

/// Certificates in one chain file, at most: the member's, three below the root, and four roots.
pub(crate) const CHAIN_MAX_CERTIFICATES: usize = 8;
/// Bytes of a PEM file, at most.
pub(crate) const PEM_MAX_BYTES: u64 = 64 * 1024;

/// Why an identity is unusable.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text has no usable PEM block of the expected kind.
    #[error("{label} is not usable PEM: {reason}")]
    Pem {
        /// `certificate chain`, `private key`, `root certificate`.
        label: &'static str,
        /// The error.
        reason: String,
    },
    /// A file of an identity cannot be used.
    #[error(
        "{path}: {source}; restore the directory from a backup, or remove it: a broker makes a new identity as it \
         starts, a cluster or a user joins again with a new token",
        path = .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        #[source]
        source: Box<IdentityError>,
    },
    /// A certificate could not be parsed, or is of the wrong kind.
    #[error("cannot read the certificate: {reason}")]
    Certificate {
        /// The error.
        reason: String,
    },
    /// The URI name of a certificate is not a SPIFFE id of Comity.
    #[error("the certificate carries no valid SPIFFE id: {0}")]
    Spiffe(#[from] SpiffeError),
    /// A renewal is for another member.
    #[error("the new certificate is of {found}, and the one that it renews of {expected}; it is not used")]
    OtherId {
        /// SPIFFE id of this process.
        expected: SpiffeId,
        /// SPIFFE id of the new certificate.
        found: SpiffeId,
    },
    /// A renewal brings a root that no trusted root signed.
    #[error(
        "the broker named the root {sha256}, which no trusted root signed; the new certificate is not used: ask your \
         federation's maintainers whether a broker was taken over, or join again"
    )]
    NewRoot {
        /// Hash of the root.
        sha256: RootHash,
    },
    /// A renewal takes the newest trusted root away, and brings none that this one signed.
    #[error(
        "the broker no longer names the root {sha256}, the newest one that is trusted here; the new certificate is not \
         used: install the intermediate of that root on every broker, or ask your federation's maintainers whether a \
         broker was taken over"
    )]
    DroppedRoot {
        /// Hash of the root.
        sha256: RootHash,
    },
    /// A certificate does not have exactly one URI name.
    #[error("the certificate carries {found} URI names, want exactly one SPIFFE id")]
    UriNames {
        /// Number of URI names.
        found: usize,
    },
    /// Key and certificate do not belong together.
    #[error("the private key does not belong to the certificate of {id}: {reason}")]
    KeyMismatch {
        /// SPIFFE id of the certificate.
        id: SpiffeId,
        /// Error of the TLS library; never quotes the key.
        reason: String,
    },
    /// Certificate and root belong to different federations.
    #[error(
        "the certificate is of trust domain '{found}', the root certificate of '{expected}': join again, or restore \
         the files that belong together"
    )]
    OtherTrustDomain {
        /// Trust domain of the root.
        expected: TrustDomain,
        /// Trust domain of the certificate.
        found: TrustDomain,
    },
    /// The root certificate is not the pinned one.
    #[error(
        "the root certificate has SHA-256 {found}, the join token pins {expected}: the broker that answered is not of \
         that federation, or its root was replaced since the invitation; ask for a new token"
    )]
    Pin {
        /// Hash in the join token.
        expected: RootHash,
        /// Hash of the certificate.
        found: RootHash,
    },
}

/// An identity as PEM text.
#[derive(Clone)]
pub struct IdentityPem {
    /// Private key, PKCS #8.
    pub key: SecretString,
    /// Certificate chain: leaf first, roots last.
    pub chain: String,
    /// Root certificates of the federation.
    pub ca: String,
}

impl IdentityPem {
    /// The chain, and what its first certificate says.
    fn leaf(&self) -> Result<(Vec<CertificateDer<'static>>, CertificateFacts), IdentityError> {
        let chain = parse_chain("certificate chain", &self.chain)?;
        let leaf = chain.first().ok_or_else(|| pem_error("certificate chain", "it has no certificate"))?;
        let facts = CertificateFacts::of(leaf)?;
        Ok((chain, facts))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, IdentityError> {
        PrivateKeyDer::from_pem_slice(self.key.expose().as_bytes())
            // Drops the library's message, which may quote the key.
            .map_err(|_| pem_error("private key", "want a PKCS #8 'PRIVATE KEY' block"))
    }
}

impl fmt::Debug for IdentityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityPem").field("chain", &self.chain).finish_non_exhaustive()
    }
}

/// A key with its certificate, validated for TLS. Cheap to clone.
#[derive(Clone)]
pub struct TlsIdentity(Arc<Inner>);

struct Inner {
    key: Arc<CertifiedKey>,
    facts: CertificateFacts,
    roots: Roots,
}

impl TlsIdentity {
    /// Checks that key, certificate and root belong together.
    ///
    /// # Errors
    /// [`IdentityError`] if they do not, or one of them is unreadable. Accepts an expired certificate: peers refuse it,
    /// but renewal still needs it.
    pub fn from_pem(pem: &IdentityPem) -> Result<Self, IdentityError> {
        let (chain, facts) = pem.leaf()?;
        let roots = Roots::from_pem(&pem.ca, facts.id.trust_domain())?;
        let key = pem.private_key()?;
        let mismatch =
            |error: rustls::Error| IdentityError::KeyMismatch { id: facts.id.clone(), reason: error.to_string() };
        let signing = rustls::crypto::ring::sign::any_supported_type(&key).map_err(mismatch)?;
        let key = CertifiedKey::new(chain, signing);
        key.keys_match().map_err(mismatch)?;
        Ok(Self(Arc::new(Inner { key: Arc::new(key), facts, roots })))
    }

    /// The SPIFFE id of the certificate.
    pub fn id(&self) -> &SpiffeId {
        &self.0.facts.id
    }

    /// The roots of the federation that came with the certificate.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.0.roots
    }

    /// What the chain has above the certificate.
    pub(crate) fn intermediates_and_roots(&self) -> &[CertificateDer<'static>] {
        self.0.key.cert.get(1..).unwrap_or_default()
    }

    /// The host names and addresses in the certificate.
    pub fn hosts(&self) -> &[HostName] {
        &self.0.facts.hosts
    }

    /// Start of the certificate's validity.
    pub fn not_before(&self) -> SystemTime {
        self.0.facts.not_before
    }

    /// End of the certificate's validity.
    pub fn not_after(&self) -> SystemTime {
        self.0.facts.not_after
    }

    /// Generation in which the certificate was issued; see [`CertificateAuthority::issue`](crate::ca::CertificateAuthority::issue).
    pub fn generation(&self) -> u64 {
        self.0.facts.generation
    }

    /// When to renew the certificate: after two thirds of its lifetime, which leaves a third for outages of the broker
    /// group.
    pub fn renew_at(&self) -> SystemTime {
        // The lifetime starts at the issue, which is later than the backdated start of the validity.
        let issued = (self.not_before() + BACKDATE).min(self.not_after());
        let lifetime = self.not_after().duration_since(issued).unwrap_or(Duration::ZERO);
        issued + lifetime * 2 / 3
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

/// The newest identity of this process. A renewal calls [`update`](Self::update); servers and clients
/// [`subscribe`](Self::subscribe) and present the newest identity on each new connection.
#[derive(Debug, Clone)]
pub struct IdentitySource(Arc<watch::Sender<TlsIdentity>>);

impl IdentitySource {
    /// A source with an initial identity.
    pub fn new(identity: TlsIdentity) -> Self {
        Self(Arc::new(watch::Sender::new(identity)))
    }

    /// Replaces the identity for new connections; open connections keep theirs.
    pub fn update(&self, identity: TlsIdentity) {
        self.0.send_replace(identity);
    }

    /// The newest identity.
    pub fn current(&self) -> TlsIdentity {
        self.0.borrow().clone()
    }

    /// A receiver of the newest identity.
    pub fn subscribe(&self) -> watch::Receiver<TlsIdentity> {
        self.0.subscribe()
    }
}

fn pem_error(label: &'static str, reason: impl fmt::Display) -> IdentityError {
    IdentityError::Pem { label, reason: reason.to_string() }
}

/// Parses a chain of certificates. `label` names it in errors.
pub(crate) fn parse_chain(label: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        if chain.len() == CHAIN_MAX_CERTIFICATES {
            let reason = format!("it has more than {CHAIN_MAX_CERTIFICATES} certificates");
            return Err(pem_error(label, reason));
        }
        chain.push(certificate.map_err(|error| pem_error(label, error))?);
    }
    Ok(chain)
}

/// The signature algorithms that all TLS configurations of this crate accept.
pub(crate) fn signature_algorithms() -> rustls::crypto::WebPkiSupportedAlgorithms {
    crypto::provider().signature_verification_algorithms
}
