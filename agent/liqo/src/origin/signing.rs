//! The proof that this cluster holds its Liqo key, and the certificate request for it.
//!
//! Signs only text of the form of Liqo's nonces, 64 bytes in base64, so that no signature is valid elsewhere.

#[cfg(test)]
mod fuzz_answer;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_model::delivery_error::DeliveryError;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ed25519_dalek::{Signer as _, SigningKey};
use rcgen::{CertificateParams, DistinguishedName, DnType};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::{Challenge, TenantRequest};

/// Organisation that Liqo expects of a control plane's certificate.
const LIQO_ORGANISATION: &str = "liqo.io";
/// Bytes of a nonce.
const NONCE_BYTES: usize = 64;

/// Answers a challenge with the PEM key of Liqo's Secret `authentication-keys`, as cluster `own_id`.
pub(super) fn answer(challenge: &Challenge, pem_key: &[u8], own_id: &str) -> Result<TenantRequest, DeliveryError> {
    let nonce = nonce(challenge)?;
    let key = LiqoKey::read(pem_key)?;
    let signature = key.signing.sign(&nonce);
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, LIQO_ORGANISATION);
    subject.push(DnType::CommonName, own_id);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let csr = params.serialize_request(&key).and_then(|csr| csr.pem()).map_err(|error| {
        DeliveryError::permanent("liqo-csr", format!("no certificate request can be made: {error}"))
    })?;
    let public = rcgen::PublicKeyData::subject_public_key_info(&key);
    Ok(TenantRequest {
        public_key: STANDARD.encode(pem_block("PUBLIC KEY", &public)),
        csr: STANDARD.encode(csr),
        signature: STANDARD.encode(signature.to_bytes()),
    })
}

/// The bytes to sign.
fn nonce(challenge: &Challenge) -> Result<Vec<u8>, DeliveryError> {
    let text = STANDARD.decode(&challenge.nonce).ok().filter(|text| text.len() <= 4 * NONCE_BYTES);
    match text {
        Some(text) if STANDARD.decode(&text).is_ok_and(|bytes| bytes.len() == NONCE_BYTES) => Ok(text),
        _ => Err(DeliveryError::permanent(
            "bad-liqo-nonce",
            format!("the donor's nonce is not base64 text of {NONCE_BYTES} bytes as Liqo makes it; it is not signed"),
        )),
    }
}

fn pem_block(kind: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {kind}-----\n"));
    text
}

/// The key; it wipes itself when dropped, and is never printed.
struct LiqoKey {
    signing: SigningKey,
    public: [u8; 32],
}

impl LiqoKey {
    fn read(pem: &[u8]) -> Result<Self, DeliveryError> {
        // The cause is dropped, because it might quote the key.
        let bad = || {
            DeliveryError::permanent(
                "liqo-key",
                "privateKey in Liqo's Secret authentication-keys is not an Ed25519 key in PKCS8 PEM; \
                 install Liqo with authentication.tlsCompatibilityMode=false",
            )
        };
        let mut der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| bad())?;
        let bytes = Zeroizing::new(der.secret_pkcs8_der().to_vec());
        der.zeroize();
        let signing = SigningKey::from_pkcs8_der(&bytes).map_err(|_| bad())?;
        let public = signing.verifying_key().to_bytes();
        Ok(Self { signing, public })
    }
}

impl rcgen::PublicKeyData for LiqoKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl rcgen::SigningKey for LiqoKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.signing.sign(message).to_bytes().to_vec())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};

    use super::*;

    /// A key as Go writes it: PKCS8 without the public half.
    fn go_key() -> (String, VerifyingKey) {
        let seed = [7_u8; 32];
        let mut der = hex::decode("302e020100300506032b657004220420").unwrap();
        der.extend_from_slice(&seed);
        (pem_block("PRIVATE KEY", &der), SigningKey::from_bytes(&seed).verifying_key())
    }

    fn challenge() -> Challenge {
        Challenge { nonce: STANDARD.encode(STANDARD.encode([9_u8; 64])) }
    }

    #[test]
    fn the_answer_proves_the_key_and_asks_for_the_right_name() {
        let (pem, public) = go_key();
        let answer = answer(&challenge(), pem.as_bytes(), "south").unwrap();
        let signature = Signature::from_slice(&STANDARD.decode(&answer.signature).unwrap()).unwrap();
        public.verify(STANDARD.encode([9_u8; 64]).as_bytes(), &signature).unwrap();

        let key_pem = String::from_utf8(STANDARD.decode(&answer.public_key).unwrap()).unwrap();
        assert!(key_pem.starts_with("-----BEGIN PUBLIC KEY-----\n"), "{key_pem}");

        let csr_pem = STANDARD.decode(&answer.csr).unwrap();
        // rcgen checks the request's own signature, and that it is made with the key in it.
        let csr = rcgen::CertificateSigningRequestParams::from_pem(&String::from_utf8(csr_pem).unwrap()).unwrap();
        assert_eq!(rcgen::PublicKeyData::der_bytes(&csr.public_key), public.as_bytes());
        let names: Vec<_> =
            csr.params.distinguished_name.iter().map(|(kind, name)| format!("{kind:?} {name:?}")).collect();
        assert!(names[0].contains("OrganizationName") && names[0].contains("liqo.io"), "{names:?}");
        assert!(names[1].contains("CommonName") && names[1].contains("south"), "{names:?}");
    }

    #[test]
    fn nothing_but_a_nonce_is_signed() {
        let (pem, _) = go_key();
        let certificate_like = STANDARD.encode([0x30_u8; 88]);
        for wrong in
            ["", "%", &STANDARD.encode([9_u8; 64]), &certificate_like, &STANDARD.encode(STANDARD.encode([9_u8; 63]))]
        {
            let error = answer(&Challenge { nonce: wrong.to_owned() }, pem.as_bytes(), "south").unwrap_err();
            assert!(matches!(error, DeliveryError::Permanent { code: "bad-liqo-nonce", .. }), "{error}");
        }
    }

    #[test]
    fn a_strange_key_is_refused_without_being_quoted() {
        for wrong in ["", "very-secret", "-----BEGIN PRIVATE KEY-----\ndmVyeS1zZWNyZXQ=\n-----END PRIVATE KEY-----\n"] {
            let error = answer(&challenge(), wrong.as_bytes(), "south").unwrap_err().to_string();
            assert!(error.contains("authentication-keys") && !error.contains("very"), "{error}");
        }
    }
}
