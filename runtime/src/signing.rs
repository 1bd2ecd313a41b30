//! Ed25519 identity keys (RFC 8032). Clusters sign their key bundles with them, and institutions sign vouchers for
//! clusters' keys.
//!
//! A signature covers its purpose (the *domain*), so it is invalid for any other one, and the length of each part, so
//! no byte can move from one part to the next.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::atomic_file::{self, FileError, PRIVATE};
use crate::entropy::Entropy;
use crate::spiffe::{ClusterName, SpiffeId};

const TEXT_PREFIX: &str = "ed25519:";
const SIGNED_PREFIX: &[u8] = b"comity-signed-v1\0";
/// Purpose of an institution's signature over one of its clusters' identity keys.
const VOUCHER_DOMAIN: &str = "voucher";
/// Purpose of the signature with which a member asks for a new certificate.
const RENEWAL_DOMAIN: &str = "renew-csr";
/// PKCS #8 of an Ed25519 key up to the key's 32 bytes (RFC 8410, section 7).
const PKCS8_PREFIX: &[u8] =
    &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const KEY_FILE_MAX_BYTES: u64 = 4 * 1024;

/// Why a key or signature was refused.
#[derive(Debug, Error)]
pub enum SigningError {
    /// A key file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The content of a key file is not a key.
    #[error("{path} has no Ed25519 private key in PKCS #8 PEM: restore it, or remove it and join again")]
    KeyFile {
        /// Path of the file.
        path: String,
    },
    /// The text is not a public key or signature.
    #[error("{field} is not valid: want 'ed25519:' followed by base64 of {bytes} bytes")]
    Text {
        /// `public key` or `signature`.
        field: &'static str,
        /// Required length.
        bytes: usize,
    },
    /// The public key is weak or not a point of the curve.
    #[error("public key is not a usable Ed25519 key")]
    WeakKey,
    /// The signature is invalid for this key and message.
    #[error("signature does not verify with {key}: the message was changed, or signed with another key")]
    Signature {
        /// The expected key.
        key: IdentityPublicKey,
    },
}

/// A private identity key. Dropping it erases it from memory.
#[derive(Clone)]
pub struct IdentityKey(SigningKey);

impl IdentityKey {
    /// Generates a key.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        entropy.fill(seed.as_mut());
        Self(SigningKey::from_bytes(&seed))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`SigningError`] if the file is missing or has no key.
    pub fn load(path: &Path) -> Result<Self, SigningError> {
        let bytes = Zeroizing::new(atomic_file::read_bounded(path, KEY_FILE_MAX_BYTES)?);
        let der = PrivatePkcs8KeyDer::from_pem_slice(&bytes).ok();
        let key = der.and_then(|der| SigningKey::from_pkcs8_der(der.secret_pkcs8_der()).ok());
        key.map(Self).ok_or_else(|| SigningError::KeyFile { path: path.display().to_string() })
    }

    /// Writes the key as PKCS #8 PEM with mode 0600. Never replaces an existing file.
    ///
    /// # Errors
    /// [`SigningError::File`].
    pub fn save(&self, path: &Path) -> Result<(), SigningError> {
        let der = Zeroizing::new([PKCS8_PREFIX, self.0.as_bytes()].concat());
        let base64 = Zeroizing::new(STANDARD.encode(&*der));
        let pem = Zeroizing::new(format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", *base64));
        Ok(atomic_file::write_new(path, pem.as_bytes(), PRIVATE)?)
    }

    /// Reads the key, or generates and saves one if the file is missing.
    ///
    /// # Errors
    /// [`SigningError`], also for a damaged file, which stays unchanged.
    pub fn load_or_generate(path: &Path, entropy: &dyn Entropy) -> Result<Self, SigningError> {
        match Self::load(path) {
            Err(SigningError::File(error)) if error.is_not_found() => {
                let key = Self::generate(entropy);
                key.save(path)?;
                Ok(key)
            }
            other => other,
        }
    }

    /// The public key.
    pub fn public(&self) -> IdentityPublicKey {
        IdentityPublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs parts for a purpose, such as `sign("key-bundle", &[peering, bundle])`.
    pub fn sign(&self, domain: &str, parts: &[&[u8]]) -> IdentitySignature {
        IdentitySignature(self.0.sign(&signed_message(domain, parts)).to_bytes())
    }

    /// Signs the request of a member for a new certificate.
    pub fn sign_renewal(&self, member: &SpiffeId, csr_der: &[u8]) -> IdentitySignature {
        self.sign(RENEWAL_DOMAIN, &[member.to_string().as_bytes(), csr_der])
    }

    /// Signs, with a key of `institution`, a voucher: `cluster` is the institution's, and `key` is its identity key.
    pub fn vouch(&self, institution: &str, cluster: &ClusterName, key: &IdentityPublicKey) -> IdentitySignature {
        self.sign(VOUCHER_DOMAIN, &voucher_parts(institution, cluster, key))
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdentityKey(public {})", self.public())
    }
}

/// A public identity key. Its text form is `ed25519:<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdentityPublicKey([u8; 32]);

impl IdentityPublicKey {
    /// Validates the 32 bytes of a key.
    ///
    /// # Errors
    /// [`SigningError`] if the length is not 32, or the key is weak.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SigningError> {
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| SigningError::Text { field: "public key", bytes: 32 })?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| SigningError::WeakKey)?;
        if key.is_weak() { Err(SigningError::WeakKey) } else { Ok(Self(bytes)) }
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Verifies a signature of [`IdentityKey::sign`].
    ///
    /// # Errors
    /// [`SigningError::Signature`].
    pub fn verify(&self, domain: &str, parts: &[&[u8]], signature: &IdentitySignature) -> Result<(), SigningError> {
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| SigningError::WeakKey)?;
        key.verify_strict(&signed_message(domain, parts), &Signature::from_bytes(&signature.0))
            .map_err(|_| SigningError::Signature { key: *self })
    }

    /// Verifies a signature of [`IdentityKey::sign_renewal`].
    ///
    /// # Errors
    /// [`SigningError::Signature`].
    pub fn verify_renewal(
        &self,
        member: &SpiffeId,
        csr_der: &[u8],
        signature: &IdentitySignature,
    ) -> Result<(), SigningError> {
        self.verify(RENEWAL_DOMAIN, &[member.to_string().as_bytes(), csr_der], signature)
    }

    /// Verifies, with a key of `institution`, a voucher of [`IdentityKey::vouch`].
    ///
    /// # Errors
    /// [`SigningError::Signature`].
    pub fn verify_voucher(
        &self,
        institution: &str,
        cluster: &ClusterName,
        key: &Self,
        voucher: &IdentitySignature,
    ) -> Result<(), SigningError> {
        self.verify(VOUCHER_DOMAIN, &voucher_parts(institution, cluster, key), voucher)
    }
}

/// A signature. Its text form is `ed25519:<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdentitySignature([u8; 64]);

impl IdentitySignature {
    /// Accepts the 64 bytes of a signature.
    ///
    /// # Errors
    /// [`SigningError::Text`] if the length is not 64.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SigningError> {
        let bytes = bytes.try_into().map_err(|_| SigningError::Text { field: "signature", bytes: 64 })?;
        Ok(Self(bytes))
    }

    /// The 64 bytes.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

macro_rules! impl_text_form {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{TEXT_PREFIX}{}", STANDARD.encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = SigningError;
            fn from_str(text: &str) -> Result<Self, SigningError> {
                let bytes = text.strip_prefix(TEXT_PREFIX).and_then(|text| STANDARD.decode(text).ok());
                // Text that does not decode has 0 bytes, which is refused like any wrong length.
                Self::from_bytes(&bytes.unwrap_or_default())
            }
        }

        impl TryFrom<String> for $name {
            type Error = SigningError;
            fn try_from(text: String) -> Result<Self, SigningError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

impl_text_form!(IdentityPublicKey);
impl_text_form!(IdentitySignature);

fn signed_message(domain: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut message = SIGNED_PREFIX.to_vec();
    for part in std::iter::once(domain.as_bytes()).chain(parts.iter().copied()) {
        message.extend((part.len() as u64).to_be_bytes());
        message.extend(part);
    }
    message
}

fn voucher_parts<'a>(institution: &'a str, cluster: &'a ClusterName, key: &'a IdentityPublicKey) -> [&'a [u8]; 3] {
    [institution.as_bytes(), cluster.as_str().as_bytes(), &key.0]
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::entropy::SeededEntropy;

    fn key(seed: u64) -> IdentityKey {
        IdentityKey::generate(&SeededEntropy::new(seed))
    }

    #[test]
    fn a_signature_holds_for_its_key_domain_and_parts_only() {
        let signature = key(1).sign("bundle", &[b"ab", b"c"]);
        let public = key(1).public();
        public.verify("bundle", &[b"ab", b"c"], &signature).unwrap();
        assert!(public.verify("bundle", &[b"a", b"bc"], &signature).is_err());
        assert!(public.verify("bundle", &[b"ab", b"c", b""], &signature).is_err());
        assert!(public.verify("bundl", &[b"eab", b"c"], &signature).is_err());
        assert!(key(2).public().verify("bundle", &[b"ab", b"c"], &signature).is_err());
    }

    #[test]
    fn a_voucher_holds_for_its_institution_cluster_and_key_only() {
        let (signing, cluster_key) = (key(1), key(2).public());
        let (signing_key, name) = (signing.public(), |name: &str| ClusterName::new(name).unwrap());
        let voucher = signing.vouch("eth", &name("main"), &cluster_key);
        signing_key.verify_voucher("eth", &name("main"), &cluster_key, &voucher).unwrap();
        assert!(signing_key.verify_voucher("ethm", &name("ain"), &cluster_key, &voucher).is_err());
        assert!(signing_key.verify_voucher("epf", &name("main"), &cluster_key, &voucher).is_err());
        assert!(signing_key.verify_voucher("eth", &name("farm"), &cluster_key, &voucher).is_err());
        assert!(signing_key.verify_voucher("eth", &name("main"), &key(3).public(), &voucher).is_err());
        assert!(key(4).public().verify_voucher("eth", &name("main"), &cluster_key, &voucher).is_err());
        // The documented bytes, so that vouchers can be made with other tools.
        let parts: [&[u8]; 3] = [b"eth", b"main", cluster_key.as_bytes()];
        signing_key.verify("voucher", &parts, &voucher).unwrap();
        // A signature for another purpose is no voucher.
        let other = signing.sign("key-bundle", &parts);
        assert!(signing_key.verify_voucher("eth", &name("main"), &cluster_key, &other).is_err());
    }

    #[test]
    fn a_renewal_holds_for_its_member_and_request_only_and_no_join_stands_in_for_it() {
        let ethz: SpiffeId = "spiffe://dev.test/cluster/ethz".parse().unwrap();
        let signature = key(1).sign_renewal(&ethz, b"csr");
        key(1).public().verify_renewal(&ethz, b"csr", &signature).unwrap();
        let epfl: SpiffeId = "spiffe://dev.test/cluster/epfl".parse().unwrap();
        assert!(key(1).public().verify_renewal(&epfl, b"csr", &signature).is_err());
        assert!(key(1).public().verify_renewal(&ethz, b"other", &signature).is_err());
        assert!(key(2).public().verify_renewal(&ethz, b"csr", &signature).is_err());
        let join = key(1).sign("join-csr", &[b"csr"]);
        assert!(key(1).public().verify_renewal(&ethz, b"csr", &join).is_err());
    }

    #[test]
    fn text_round_trips_and_garbage_is_refused() {
        let (public, signature) = (key(1).public(), key(1).sign("d", &[]));
        assert_eq!(public.to_string().parse::<IdentityPublicKey>().unwrap(), public);
        assert_eq!(signature.to_string().parse::<IdentitySignature>().unwrap(), signature);
        let json = serde_json::to_string(&public).unwrap();
        assert_eq!(serde_json::from_str::<IdentityPublicKey>(&json).unwrap(), public);
        for bad in ["", "ed25519:", "ed25519:AAAA", "rsa:AAAA", &public.to_string()[8..]] {
            assert!(bad.parse::<IdentityPublicKey>().is_err(), "{bad}");
            assert!(bad.parse::<IdentitySignature>().is_err(), "{bad}");
        }
        let small_order = [1_u8].into_iter().chain([0; 31]).collect::<Vec<_>>();
        assert!(matches!(IdentityPublicKey::from_bytes(&small_order), Err(SigningError::WeakKey)));
    }

    #[test]
    fn saved_with_mode_0600_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity-key.pem");
        let entropy = SeededEntropy::new(5);
        let made = IdentityKey::load_or_generate(&path, &entropy).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = IdentityKey::load_or_generate(&path, &entropy).unwrap();
        assert_eq!(made.public(), again.public());
        assert!(key(9).save(&path).is_err());
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n").unwrap();
        let error = IdentityKey::load_or_generate(&path, &entropy).unwrap_err().to_string();
        assert!(error.contains("identity-key.pem") && !error.contains("c2VjcmV0"), "{error}");
        assert!(!format!("{made:?}").contains("SigningKey"));
    }
}
