//! The root certificate of a federation and its hash.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::certificate::root_trust_domain;
use super::{IdentityError, parse_chain, pem_error};
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

/// The root certificate of a federation, with its trust domain.
#[derive(Debug, Clone)]
pub struct Roots {
    trust_domain: TrustDomain,
    root: CertificateDer<'static>,
    store: Arc<RootCertStore>,
}

impl Roots {
    /// Parses a root certificate.
    ///
    /// # Errors
    /// [`IdentityError`] if the text is not exactly one CA certificate with a trust domain.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let mut chain = parse_chain("root certificate", pem)?;
        let (Some(root), true) = (chain.pop(), chain.is_empty()) else {
            return Err(pem_error("root certificate", "want exactly one certificate"));
        };
        Self::from_der(root)
    }

    /// Parses a root certificate and compares its hash with the pin of a join token.
    ///
    /// # Errors
    /// [`IdentityError::Pin`] if the hashes differ; otherwise like [`from_pem`](Self::from_pem).
    pub fn from_pem_pinned(pem: &str, pin: &RootHash) -> Result<Self, IdentityError> {
        let roots = Self::from_pem(pem)?;
        let found = roots.sha256();
        if bool::from(found.0.ct_eq(&pin.0)) { Ok(roots) } else { Err(IdentityError::Pin { expected: *pin, found }) }
    }

    pub(crate) fn from_der(root: CertificateDer<'static>) -> Result<Self, IdentityError> {
        let trust_domain = root_trust_domain(&root)?;
        let mut store = RootCertStore::empty();
        store.add(root.clone()).map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
        Ok(Self { trust_domain, root, store: Arc::new(store) })
    }

    /// The trust domain of the federation.
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The hash that join tokens pin.
    pub fn sha256(&self) -> RootHash {
        RootHash::of(&self.root)
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}
