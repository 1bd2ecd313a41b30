//! Sealing messages between two agents: HPKE (RFC 9180) in base mode with X-Wing, HKDF-SHA256 and ChaCha20-Poly1305.
//!
//! X-Wing combines X25519 and ML-KEM-768: whoever records an envelope has to break both to open it, and a quantum
//! computer is known to break only the first. The suite is fixed; the receiver's key bundle names and signs it.
//!
//! The binding is associated data, so that no envelope can be replayed, moved or relabelled. Base mode does not
//! authenticate the sender; so its identity key signs content and binding inside the seal, and a broker that knows all
//! public keys cannot forge an envelope.

use comity_agent_model::envelope::{Envelope, lease_text};
use comity_agent_state::record::{HpkePublicKey, SecretKey};
use comity_proto::v1;
use comity_runtime::{Entropy, IdentityKey, IdentityPublicKey, IdentitySignature};
use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::XWing;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{Deserializable as _, Kem, OpModeR, OpModeS, Serializable as _};
use zeroize::Zeroizing;

/// The only suite, as HPKE writes one: the ids of KEM (X-Wing), KDF (HKDF-SHA256) and AEAD (ChaCha20-Poly1305).
pub const SUITE: [u8; 6] = [0x64, 0x7a, 0x00, 0x01, 0x00, 0x03];
/// HPKE's `info`.
const INFO: &[u8] = b"comity envelope v1";
/// Domain of the sender's signature over an envelope.
const ENVELOPE_DOMAIN: &str = "envelope";
/// Length of the signature before the content.
const SIGNATURE_BYTES: usize = 64;
/// Most bytes of content: an envelope's 64 KiB less signature and tag.
pub const MAX_CONTENT_BYTES: usize = (64 << 10) - SIGNATURE_BYTES - 16;

/// Why an envelope cannot be sealed or opened. None of them holds content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Too much content.
    #[error("content of {bytes} bytes does not fit an envelope, at most {MAX_CONTENT_BYTES} do")]
    TooLarge {
        /// How much.
        bytes: usize,
    },
    /// The receiver's key is invalid.
    #[error("the HPKE public key of {cluster} is not valid")]
    BadKey {
        /// The owner of the key.
        cluster: String,
    },
    /// It does not open: changed, moved, or for another key.
    #[error(
        "the {step} envelope {sequence} from {from} does not open: it was changed or moved, or is sealed to another key"
    )]
    DoesNotOpen {
        /// Its step.
        step: String,
        /// Its sequence.
        sequence: u64,
        /// The sender that it names.
        from: String,
    },
    /// It opens, but the claimed sender did not sign it.
    #[error("the {step} envelope {sequence} is not signed by {from}: somebody else made it")]
    NotSigned {
        /// Its step.
        step: String,
        /// Its sequence.
        sequence: u64,
        /// The sender that it names.
        from: String,
    },
}

/// Subject of an envelope, bound to its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Trust domain of the federation.
    pub federation: String,
    /// Peering.
    pub peering: String,
    /// Epoch.
    pub epoch: u32,
    /// Lease; empty for the peering itself.
    pub lease: String,
    /// Step.
    pub step: String,
    /// Sequence, from 1.
    pub sequence: u64,
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
}

impl Binding {
    /// The binding of a received envelope.
    #[must_use]
    pub fn of(federation: &str, envelope: &Envelope) -> Self {
        let key = &envelope.key;
        Self {
            federation: federation.to_owned(),
            peering: key.peering.to_string(),
            epoch: key.epoch,
            lease: lease_text(key.lease),
            step: key.step.clone(),
            sequence: key.sequence,
            from: envelope.from.to_string(),
            to: envelope.to.to_string(),
        }
    }

    /// Canonical bytes: texts with their length in 8 bytes before them, numbers in big-endian order; no two bindings
    /// share any.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut text = |text: &str| {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        };
        for part in [&self.federation, &self.peering, &self.lease, &self.step, &self.from, &self.to] {
            text(part);
        }
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes
    }
}

/// Public half of an HPKE key; `DeriveKeyPair` makes the private half of 32 random bytes.
#[must_use]
pub fn hpke_public(secret: &SecretKey) -> HpkePublicKey {
    let (_, public) = XWing::derive_keypair(secret.expose());
    HpkePublicKey::from_bytes(&public.to_bytes()).expect("a derived key is valid")
}

/// Seals content to the receiver's key, signed by the sender's.
///
/// # Errors
/// [`SealError::TooLarge`], [`SealError::BadKey`].
pub fn seal(
    binding: &Binding,
    content: &[u8],
    receiver: &HpkePublicKey,
    signer: &IdentityKey,
    entropy: &dyn Entropy,
) -> Result<v1::Envelope, SealError> {
    if content.len() > MAX_CONTENT_BYTES {
        return Err(SealError::TooLarge { bytes: content.len() });
    }
    let bad_key = || SealError::BadKey { cluster: binding.to.clone() };
    let receiver = <XWing as Kem>::PublicKey::from_bytes(receiver.as_bytes()).map_err(|_| bad_key())?;
    let associated = binding.bytes();
    let signature = signer.sign(ENVELOPE_DOMAIN, &[&associated, content]);
    let plain = Zeroizing::new([signature.as_bytes().as_slice(), content].concat());
    let (encapsulated, ciphertext) = hpke::single_shot_seal_with_rng::<ChaCha20Poly1305, HkdfSha256, XWing>(
        &OpModeS::Base,
        &receiver,
        INFO,
        &plain,
        &associated,
        &mut HpkeRandomness(entropy),
    )
    .map_err(|_| bad_key())?;
    Ok(v1::Envelope {
        peering: binding.peering.clone(),
        epoch: binding.epoch,
        lease: binding.lease.clone(),
        step: binding.step.clone(),
        sequence: binding.sequence,
        from: binding.from.clone(),
        to: binding.to.clone(),
        encapsulated_key: encapsulated.to_bytes().to_vec(),
        ciphertext,
        expires_at_ms: u64::MAX >> 1,
    })
}

/// Opens an envelope and verifies its sender. The caller must prevent replays.
///
/// # Errors
/// [`SealError::DoesNotOpen`], [`SealError::NotSigned`].
pub fn open(
    federation: &str,
    envelope: &Envelope,
    secret: &SecretKey,
    sender: &IdentityPublicKey,
) -> Result<Zeroizing<Vec<u8>>, SealError> {
    let does_not_open = || SealError::DoesNotOpen {
        step: envelope.key.step.clone(),
        sequence: envelope.key.sequence,
        from: envelope.from.to_string(),
    };
    let associated = Binding::of(federation, envelope).bytes();
    let (private, _) = XWing::derive_keypair(secret.expose());
    let encapsulated =
        <XWing as Kem>::EncappedKey::from_bytes(&envelope.encapsulated_key).map_err(|_| does_not_open())?;
    let plain = hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, XWing>(
        &OpModeR::Base,
        &private,
        &encapsulated,
        INFO,
        &envelope.ciphertext,
        &associated,
    )
    .map(Zeroizing::new)
    .map_err(|_| does_not_open())?;
    let (signature, content) = plain.split_at_checked(SIGNATURE_BYTES).ok_or_else(does_not_open)?;
    let signature = IdentitySignature::from_bytes(signature).map_err(|_| does_not_open())?;
    sender.verify(ENVELOPE_DOMAIN, &[&associated, content], &signature).map_err(|_| SealError::NotSigned {
        step: envelope.key.step.clone(),
        sequence: envelope.key.sequence,
        from: envelope.from.to_string(),
    })?;
    Ok(Zeroizing::new(content.to_vec()))
}

/// Gives HPKE the agent's randomness.
struct HpkeRandomness<'a>(&'a dyn Entropy);

impl TryRng for HpkeRandomness<'_> {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, buffer: &mut [u8]) -> Result<(), Self::Error> {
        self.0.fill(buffer);
        Ok(())
    }
}

impl TryCryptoRng for HpkeRandomness<'_> {}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::{SeededEntropy, SystemEntropy};
    use comity_types::{LeaseId, PeeringId};

    use super::*;

    /// Length of ML-KEM-768's ciphertext, the first half of an encapsulated key.
    const ML_KEM_BYTES: usize = 1088;

    fn binding() -> Binding {
        Binding {
            federation: "dev.test".into(),
            peering: "peer-1".into(),
            epoch: 2,
            lease: "lease-3".into(),
            step: "credential".into(),
            sequence: 4,
            from: "donor".into(),
            to: "origin".into(),
        }
    }

    fn sealed(signer: &IdentityKey, secret: &SecretKey) -> Envelope {
        let envelope = seal(&binding(), b"content", &hpke_public(secret), signer, &SystemEntropy).unwrap();
        envelope.try_into().unwrap()
    }

    #[test]
    fn what_is_sealed_opens_for_its_receiver_alone() {
        let (signer, secret) = (IdentityKey::generate(&SystemEntropy), SecretKey::new([7; 32]));
        let envelope = sealed(&signer, &secret);
        assert_eq!(*open("dev.test", &envelope, &secret, &signer.public()).unwrap(), b"content");
        let other = SecretKey::new([8; 32]);
        assert!(matches!(open("dev.test", &envelope, &other, &signer.public()), Err(SealError::DoesNotOpen { .. })));
    }

    #[test]
    fn every_bound_field_is_bound() {
        let (signer, secret) = (IdentityKey::generate(&SystemEntropy), SecretKey::new([7; 32]));
        let envelope = sealed(&signer, &secret);
        let changes: [fn(&mut Envelope); 9] = [
            |e| e.key.peering = PeeringId(2),
            |e| e.key.epoch = 3,
            |e| e.key.lease = Some(LeaseId(4)),
            |e| e.key.step = "psk".into(),
            |e| e.key.sequence = 5,
            |e| e.from = "other".parse().unwrap(),
            |e| e.to = "other".parse().unwrap(),
            |e| e.ciphertext[0] ^= 1,
            |e| e.encapsulated_key.truncate(32),
        ];
        for change in changes {
            let mut changed = envelope.clone();
            change(&mut changed);
            let opened = open("dev.test", &changed, &secret, &signer.public());
            assert!(matches!(opened, Err(SealError::DoesNotOpen { .. })), "{opened:?}");
        }
        assert!(open("other.test", &envelope, &secret, &signer.public()).is_err());
        assert!(open("dev.test", &envelope, &secret, &signer.public()).is_ok());
    }

    #[test]
    fn no_two_bindings_have_equal_bytes() {
        let one = Binding { peering: "peer-1".into(), lease: "2".into(), ..binding() };
        let other = Binding { peering: "peer-12".into(), lease: String::new(), ..binding() };
        assert_ne!(one.bytes(), other.bytes());
    }

    #[test]
    fn an_envelope_of_somebody_else_is_refused() {
        let (signer, secret) = (IdentityKey::generate(&SystemEntropy), SecretKey::new([7; 32]));
        let forged = sealed(&IdentityKey::generate(&SystemEntropy), &secret);
        assert!(matches!(open("dev.test", &forged, &secret, &signer.public()), Err(SealError::NotSigned { .. })));
    }

    #[test]
    fn too_much_content_is_refused_and_the_most_fits() {
        let (signer, secret) = (IdentityKey::generate(&SystemEntropy), SecretKey::new([7; 32]));
        let seal_bytes = |n| seal(&binding(), &vec![0; n], &hpke_public(&secret), &signer, &SeededEntropy::new(1));
        assert_eq!(seal_bytes(MAX_CONTENT_BYTES).unwrap().ciphertext.len(), 64 << 10);
        assert_eq!(
            seal_bytes(MAX_CONTENT_BYTES + 1).unwrap_err(),
            SealError::TooLarge { bytes: MAX_CONTENT_BYTES + 1 }
        );
    }

    #[test]
    fn both_halves_of_the_encapsulated_key_must_be_unchanged() {
        let (signer, secret) = (IdentityKey::generate(&SystemEntropy), SecretKey::new([7; 32]));
        let envelope = sealed(&signer, &secret);
        assert_eq!(envelope.encapsulated_key.len(), ML_KEM_BYTES + 32);
        // First and last byte of ML-KEM's ciphertext, and of X25519's key. X25519 itself ignores the highest bit of its
        // key, X-Wing does not.
        for (at, bit) in [(0, 1), (ML_KEM_BYTES - 1, 1), (ML_KEM_BYTES, 1), (ML_KEM_BYTES + 31, 0x80)] {
            let mut changed = envelope.clone();
            changed.encapsulated_key[at] ^= bit;
            let opened = open("dev.test", &changed, &secret, &signer.public());
            assert!(matches!(opened, Err(SealError::DoesNotOpen { .. })), "byte {at}: {opened:?}");
        }
    }

    #[test]
    fn the_signed_suite_is_the_one_in_use() {
        let ids =
            [XWing::KEM_ID, <HkdfSha256 as hpke::kdf::Kdf>::KDF_ID, <ChaCha20Poly1305 as hpke::aead::Aead>::AEAD_ID];
        assert_eq!(ids.map(u16::to_be_bytes).concat(), SUITE);
    }

    /// The HPKE working group's public test vector for this suite: the key pair that `ikmR` gives. The crate x-wing is
    /// tested with the vectors of the X-Wing draft.
    #[test]
    fn derives_keys_as_the_draft_says() {
        let ikm: [u8; 32] = hex::decode("b86e76a59fabfc87b30cd7b1f7aaa28a834eb64e7a261c197b9a842893fbce56")
            .unwrap()
            .try_into()
            .unwrap();
        let public = hpke_public(&SecretKey::new(ikm));
        let (ml_kem, x25519) = public.as_bytes().split_at(HpkePublicKey::BYTES - 32);
        let first = hex::encode(&ml_kem[..32]);
        assert_eq!(first, "f5fb01a5db909ac907ecc9524de9b9eaf4997dac7d22c961267c964403825160");
        assert_eq!(hex::encode(x25519), "f571686619612d7bc8206650c1d2fc9072220e7f4d4f557f15b33dcf32e5c837");
    }
}
