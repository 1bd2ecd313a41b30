//! Certificate signing requests: the requester creates them, the authority verifies them.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _, SubjectPublicKeyInfo};
use rustls_pki_types::CertificateDer;
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

/// The public key of a certificate, as SPKI DER.
pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, CaError> {
    let (_, certificate) = X509Certificate::from_der(certificate)
        .map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
    Ok(certificate.public_key().raw.to_vec())
}
