//! The one certificate that a federation trusts.

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
use super::{IdentityError, certificates, pem_error};
use crate::spiffe::TrustDomain;

/// SHA-256 of a root certificate's DER; 64 hex digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RootHash([u8; 32]);

/// The text is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a root certificate's hash is 64 hex digits (SHA-256), got {chars} characters")]
pub struct RootHashError {
    /// How long the text is.
    pub chars: usize,
}

impl RootHash {
    pub(crate) fn of(root: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(root).into())
    }

    /// The hash's bytes.
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

/// A federation's root certificate, from which its trust domain is read.
#[derive(Debug, Clone)]
pub struct Roots {
    trust_domain: TrustDomain,
    root: CertificateDer<'static>,
    store: Arc<RootCertStore>,
}

impl Roots {
    /// Reads a root certificate.
    ///
    /// # Errors
    /// [`IdentityError`] where it is not exactly one CA certificate with a trust domain.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let mut found = certificates("root certificate", pem)?;
        let (Some(root), true) = (found.pop(), found.is_empty()) else {
            return Err(pem_error("root certificate", "want exactly one certificate"));
        };
        Self::from_der(root)
    }

    /// Reads a root certificate and compares it with the pin of a join token.
    ///
    /// # Errors
    /// [`IdentityError::Pin`] where it is another one; else like [`from_pem`](Self::from_pem).
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

    /// The federation that this root stands for.
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// What a join token pins.
    pub fn sha256(&self) -> RootHash {
        RootHash::of(&self.root)
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}
