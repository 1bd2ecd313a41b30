//! Certificate signing requests: the requester creates them, the authority verifies them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData, SubjectPublicKeyInfo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::CaError;
use crate::identity::IdentityError;
use crate::secret::SecretString;

/// An unverified certificate signing request in DER.
#[derive(Clone, PartialEq, Eq)]
pub struct CsrDer(Vec<u8>);

impl CsrDer {
    /// Bytes of a request, at most.
    pub const MAX_BYTES: usize = 8 * 1024;

    /// Accepts a request of bounded size.
    ///
    /// # Errors
    /// [`CaError::CsrTooLarge`].
    pub fn new(der: Vec<u8>) -> Result<Self, CaError> {
        if der.len() > Self::MAX_BYTES {
            return Err(CaError::CsrTooLarge { bytes: der.len() });
        }
        Ok(Self(der))
    }

    /// The DER bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Verifies the signature, which proves possession of the private key, and returns the public key.
    pub(super) fn verified_key(&self) -> Result<SubjectPublicKeyInfo, CaError> {
        let malformed = |reason: String| CaError::CsrMalformed { reason };
        let (rest, request) =
            X509CertificationRequest::from_der(&self.0).map_err(|error| malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes follow its end", rest.len())));
        }
        let spki = request.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(spki).map_err(|_| CaError::KeyAlgorithm)?;
        let accepted = [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
        if !accepted.contains(&key.algorithm()) {
            return Err(CaError::KeyAlgorithm);
        }
        request.verify_signature().map_err(|_| CaError::CsrSignature)?;
        Ok(key)
    }
}

impl fmt::Debug for CsrDer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CsrDer({} bytes)", self.0.len())
    }
}

/// A new key with the request for its certificate.
#[derive(Debug, Clone)]
pub struct KeyAndCsr {
    /// Private key, PKCS #8. Stays with the requester.
    pub key_pem: SecretString,
    /// The request for the authority.
    pub csr: CsrDer,
}

impl KeyAndCsr {
    /// Generates an ECDSA P-256 key and a request without names, which the authority decides.
    ///
    /// # Errors
    /// [`CaError::Encoding`] if the library fails.
    pub fn generate() -> Result<Self, CaError> {
        let key = KeyPair::generate().map_err(CaError::encoding)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key).map_err(CaError::encoding)?;
        Ok(Self { key_pem: SecretString::new(key.serialize_pem()), csr: CsrDer::new(csr.der().to_vec())? })
    }
}

/// The public key (SPKI DER) and the end of validity of a root certificate.
pub(super) fn root_key_and_expiry(root_pem: &str) -> Result<(Vec<u8>, SystemTime), CaError> {
    let fail = |reason: String| CaError::Identity(IdentityError::Certificate { reason });
    let der = CertificateDer::from_pem_slice(root_pem.as_bytes()).map_err(|e| fail(e.to_string()))?;
    let (_, root) = X509Certificate::from_der(&der).map_err(|e| fail(e.to_string()))?;
    let end = u64::try_from(root.validity().not_after.timestamp()).unwrap_or(0);
    Ok((root.public_key().raw.to_vec(), UNIX_EPOCH + Duration::from_secs(end)))
}
