//! Signatures of artifacts in cosign's form: a manifest with the tag `sha256-DIGEST.sig`, whose layers are payloads that
//! name the artifact's digest, each with its signature beside it.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::atomic_file;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use p256::ecdsa::signature::Verifier as _;
use serde::Deserialize;

use crate::policy_source::oci::address::ArtifactDigest;
use crate::policy_source::oci::manifest::Descriptor;
use crate::policy_source::pull_error::PullError;

/// Media type of a payload.
pub(super) const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation with the signature, in base64.
pub(super) const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// What the payload of cosign calls itself.
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// Bytes of a payload: a digest, a name and some annotations.
pub(super) const MAX_PAYLOAD_BYTES: usize = 16 * 1024;
/// Signatures of one artifact that are looked at.
pub(super) const MAX_SIGNATURES: usize = 16;
/// Bytes of the file with the keys, and keys in it.
const MAX_KEYS_BYTES: u64 = 64 * 1024;
const MAX_KEYS: usize = 16;
const END: &str = "-----END PUBLIC KEY-----";
const KEYS_REMEDY: &str = "give --policy-oci-key a file with public keys as `cosign generate-key-pair` writes cosign.pub: \
                           PEM, ECDSA P-256 or Ed25519";

/// A key that vouches for artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ArtifactKey {
    P256(Box<p256::ecdsa::VerifyingKey>),
    Ed25519(Box<ed25519_dalek::VerifyingKey>),
}

/// The keys of which one must vouch for an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArtifactKeys(Vec<ArtifactKey>);

/// Of a payload what counts.
#[derive(Deserialize)]
struct SignedPayload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: SignedImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// The tag of the signatures of an artifact.
pub(super) fn signature_tag(artifact: ArtifactDigest) -> String {
    format!("sha256-{}.sig", artifact.digits())
}

/// The signature of a payload, if a layer is one.
pub(super) fn signature_of(layer: &Descriptor) -> Option<Vec<u8>> {
    let text = layer.annotations.get(SIGNATURE_ANNOTATION).filter(|_| layer.media_type == PAYLOAD)?;
    STANDARD.decode(text).ok()
}

impl ArtifactKeys {
    /// Reads the keys of a file.
    pub(super) fn read(file: &Path) -> Result<Self, PullError> {
        let failed =
            |error: &dyn std::fmt::Display| PullError::saying("cannot read --policy-oci-key", error, KEYS_REMEDY);
        let bytes = atomic_file::read_bounded(file, MAX_KEYS_BYTES).map_err(|error| failed(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| failed(&"it is not text"))?;
        Self::parse(&text).map_err(|why| failed(&why))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut blocks: Vec<&str> = text.split_inclusive(END).collect();
        // What follows the last key.
        if blocks.last().is_some_and(|rest| rest.trim().is_empty()) {
            blocks.pop();
        }
        for block in blocks {
            if keys.len() == MAX_KEYS {
                return Err(format!("it has more than {MAX_KEYS} keys"));
            }
            let block = block.trim();
            let p256 = p256::ecdsa::VerifyingKey::from_public_key_pem(block).map(Box::new).map(ArtifactKey::P256);
            let key = p256.or_else(|_| {
                ed25519_dalek::VerifyingKey::from_public_key_pem(block).map(Box::new).map(ArtifactKey::Ed25519)
            });
            keys.push(key.map_err(|_| format!("key {} in it is no public key of these kinds", keys.len() + 1))?);
        }
        if keys.is_empty() { Err("it has no key".to_owned()) } else { Ok(Self(keys)) }
    }

    /// Whether a key signed this payload, and the payload is about this artifact.
    pub(super) fn vouch_for(&self, artifact: ArtifactDigest, payload: &[u8], signature: &[u8]) -> bool {
        let is_signed = self.0.iter().any(|key| match key {
            ArtifactKey::P256(key) => p256::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify(payload, &signature).is_ok()),
            ArtifactKey::Ed25519(key) => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(payload, &signature).is_ok()),
        });
        let is_about_it = |payload: SignedPayload| {
            payload.critical.kind == PAYLOAD_TYPE && payload.critical.image.digest == artifact.to_string()
        };
        is_signed && serde_json::from_slice(payload).is_ok_and(is_about_it)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    /// Of `cosign generate-key-pair`, version 2.6.1.
    const COSIGN_PUB: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEd1lu1v8eDSynDZ/kp11ppsndYD0v\n\
1ssdD1fQWlPVFFFDWvrQteTzbMGYFPi4u8IYeurwY73/hslLozneTYm0FA==\n\
-----END PUBLIC KEY-----\n";
    /// What `cosign sign --key` made for an artifact that `oras push` made of a folder.
    const SIGNED: &str = "sha256:c30af9b64679c9ce25b79ed5c1f139a326fdd16464dc59d307bbbcfde9392880";
    const BY_COSIGN: &str =
        "MEUCIFhLZq9Zi2mWbrUeXFPeuUQOJHkeY1rC2mL9P5zAdJXPAiEAsctERD66IlnQb1Qh+QqneVxmn0ZE2fD5t9bOfqBZG9o=";
    const PAYLOAD_OF_COSIGN: &str = r#"{"critical":{"identity":{"docker-reference":"127.0.0.1:5055/policy"},"image":{"docker-manifest-digest":"sha256:c30af9b64679c9ce25b79ed5c1f139a326fdd16464dc59d307bbbcfde9392880"},"type":"cosign container image signature"},"optional":null}"#;

    #[test]
    fn a_signature_of_cosign_itself_counts() {
        let keys = ArtifactKeys::parse(COSIGN_PUB).unwrap();
        let (artifact, signature) = (SIGNED.parse().unwrap(), STANDARD.decode(BY_COSIGN).unwrap());
        assert_eq!(signature_tag(artifact), format!("{}.sig", SIGNED.replace(':', "-")));
        assert!(keys.vouch_for(artifact, PAYLOAD_OF_COSIGN.as_bytes(), &signature));
        assert!(!keys.vouch_for(ArtifactDigest::of(b"another"), PAYLOAD_OF_COSIGN.as_bytes(), &signature));
        let changed = PAYLOAD_OF_COSIGN.replace("null", "{}");
        assert!(!keys.vouch_for(artifact, changed.as_bytes(), &signature));
    }

    #[test]
    fn made_up_signatures_and_keys() {
        let keys = ArtifactKeys::parse(COSIGN_PUB).unwrap();
        let artifact = ArtifactDigest::of(b"artifact");
        fuzz!("artifact_keys", vec![COSIGN_PUB.as_bytes().to_vec()], move |bytes: &[u8]| {
            assert!(!keys.vouch_for(artifact, bytes, bytes));
            std::str::from_utf8(bytes).is_ok_and(|text| ArtifactKeys::parse(text).is_ok())
        });
    }
}
