//! The root certificates of a federation and their hashes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::certificate::AuthorityFacts;
use super::{IdentityError, parse_chain, pem_error, signature_algorithms};
use crate::spiffe::TrustDomain;

/// SHA-256 of the DER of a root certificate. Its text form has 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RootHash([u8; 32]);

/// The text is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a root certificate's hash is 64 hex digits (SHA-256), got {chars} characters")]
pub struct RootHashError {
    /// Length of the text.
    pub chars: usize,
}

impl RootHash {
    pub(crate) fn of(root: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(root).into())
    }

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootHash({self})")
    }
}

impl FromStr for RootHash {
    type Err = RootHashError;
    fn from_str(text: &str) -> Result<Self, RootHashError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| RootHashError { chars: text.chars().count() })?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for RootHash {
    type Error = RootHashError;
    fn try_from(text: String) -> Result<Self, RootHashError> {
        text.parse()
    }
}

impl From<RootHash> for String {
    fn from(hash: RootHash) -> Self {
        hash.to_string()
    }
}

/// Trusted roots, at most: two while one takes over from the other, and a margin.
const MAX_ROOTS: usize = 4;

/// The trusted root certificates of a federation, with its trust domain.
#[derive(Debug, Clone)]
pub struct Roots {
    trust_domain: TrustDomain,
    certificates: Arc<[CertificateDer<'static>]>,
    store: Arc<RootCertStore>,
}

impl Roots {
    /// Parses root certificates. A root may name its trust domain; one that signs for more than Comity names none.
    ///
    /// # Errors
    /// [`IdentityError`] if the text is not one to four CA certificates, or one names another trust domain.
    pub fn from_pem(pem: &str, trust_domain: &TrustDomain) -> Result<Self, IdentityError> {
        const LABEL: &str = "root certificate";
        let certificates = parse_chain(LABEL, pem)?;
        if certificates.is_empty() || certificates.len() > MAX_ROOTS {
            let reason = format!("it has {} certificates, want 1 to {MAX_ROOTS}", certificates.len());
            return Err(pem_error(LABEL, reason));
        }
        Self::of(certificates, trust_domain)
    }

    /// Parses root certificates, one of which must have the hash that a join token pins.
    ///
    /// # Errors
    /// [`IdentityError::Pin`] if none has; otherwise like [`from_pem`](Self::from_pem).
    pub fn from_pem_pinned(pem: &str, trust_domain: &TrustDomain, pin: &RootHash) -> Result<Self, IdentityError> {
        let roots = Self::from_pem(pem, trust_domain)?;
        let first = roots.hashes().next();
        match first {
            Some(found) if !roots.contains(pin) => Err(IdentityError::Pin { expected: *pin, found }),
            _ => Ok(roots),
        }
    }

    pub(crate) fn of(
        certificates: Vec<CertificateDer<'static>>,
        trust_domain: &TrustDomain,
    ) -> Result<Self, IdentityError> {
        let mut store = RootCertStore::empty();
        for root in &certificates {
            match AuthorityFacts::of(root)?.trust_domain {
                Some(named) if named != *trust_domain => {
                    return Err(IdentityError::OtherTrustDomain { expected: named, found: trust_domain.clone() });
                }
                _ => {}
            }
            store.add(root.clone()).map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
        }
        Ok(Self { trust_domain: trust_domain.clone(), certificates: certificates.into(), store: Arc::new(store) })
    }

    /// The trust domain of the federation.
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The hashes of the roots, in their order.
    pub fn hashes(&self) -> impl Iterator<Item = RootHash> {
        self.certificates.iter().map(RootHash::of)
    }

    /// Whether a root has this hash.
    #[must_use]
    pub fn contains(&self, hash: &RootHash) -> bool {
        self.hashes().any(|found| bool::from(found.0.ct_eq(&hash.0)))
    }

    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Each root alone.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        self.certificates.iter().filter_map(|root| Self::of(vec![root.clone()], &self.trust_domain).ok())
    }

    /// Of presented certificates those that may sign for this federation: authorities that name its trust domain. A root
    /// may have signed others, for other purposes.
    pub(crate) fn authorities<'a>(&self, presented: &[CertificateDer<'a>]) -> Vec<CertificateDer<'a>> {
        let is_ours = |certificate: &&CertificateDer<'a>| {
            AuthorityFacts::of(certificate).is_ok_and(|facts| facts.trust_domain.as_ref() == Some(&self.trust_domain))
        };
        presented.iter().filter(is_ours).cloned().collect()
    }

    /// Verifies the chain of a server's certificate up to a root.
    pub(crate) fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        let algorithms = signature_algorithms().all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.store, intermediates, now, algorithms)
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}
