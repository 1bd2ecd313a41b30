//! Seals bytes to a public key: HPKE (RFC 9180) in base mode with X-Wing, HKDF-SHA256 and ChaCha20-Poly1305.
//!
//! X-Wing combines X25519 and ML-KEM-768: to open a recorded message, an attacker must break both, and a quantum
//! computer is known to break only the first. Base mode does not authenticate the sender; callers do.

use std::convert::Infallible;

use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::XWing;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{Deserializable as _, Kem, OpModeR, OpModeS, Serializable as _};
use zeroize::Zeroizing;

use crate::entropy::Entropy;

/// The suite, as HPKE writes one: the ids of KEM (X-Wing), KDF (HKDF-SHA256) and AEAD (ChaCha20-Poly1305).
pub const SUITE: [u8; 6] = [0x64, 0x7a, 0x00, 0x01, 0x00, 0x03];
/// Bytes of the tag that a ciphertext has beyond its plain text.
pub const TAG_BYTES: usize = 16;

/// Why bytes cannot be sealed or opened. Never holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealingError {
    /// The receiver's public key is invalid.
    #[error("it is not an X-Wing public key")]
    PublicKey,
    /// Changed, or sealed to another key or context.
    #[error("it does not open: it was changed, or is sealed to another key or context")]
    DoesNotOpen,
}

/// The use that a ciphertext is bound to. It opens only with the same one.
#[derive(Debug, Clone, Copy)]
pub struct SealContext<'a> {
    /// HPKE's `info`: the kind of message.
    pub info: &'a [u8],
    /// Associated data: the subject of this message.
    pub associated: &'a [u8],
}

/// Sealed bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// HPKE's encapsulated key: ML-KEM-768's ciphertext (1,088 bytes), then X25519's ephemeral key (32).
    pub encapsulated_key: Vec<u8>,
    /// Ciphertext with tag.
    pub ciphertext: Vec<u8>,
}

/// The public key of the private key that HPKE's `DeriveKeyPair` makes of `seed`.
#[must_use]
pub fn public_key(seed: &[u8; 32]) -> Vec<u8> {
    let (_, public) = XWing::derive_keypair(seed);
    public.to_bytes().to_vec()
}

/// Whether `bytes` are a public key: the right length, and every coefficient of the ML-KEM key in range.
#[must_use]
pub fn is_public_key(bytes: &[u8]) -> bool {
    <XWing as Kem>::PublicKey::from_bytes(bytes).is_ok()
}

/// Seals `plain` to the public key `receiver`.
///
/// # Errors
/// [`SealingError::PublicKey`].
pub fn seal(
    receiver: &[u8],
    context: SealContext<'_>,
    plain: &[u8],
    entropy: &dyn Entropy,
) -> Result<Sealed, SealingError> {
    let receiver = <XWing as Kem>::PublicKey::from_bytes(receiver).map_err(|_| SealingError::PublicKey)?;
    let (encapsulated, ciphertext) = hpke::single_shot_seal_with_rng::<ChaCha20Poly1305, HkdfSha256, XWing>(
        &OpModeS::Base,
        &receiver,
        context.info,
        plain,
        context.associated,
        &mut HpkeRandomness(entropy),
    )
    .map_err(|_| SealingError::PublicKey)?;
    Ok(Sealed { encapsulated_key: encapsulated.to_bytes().to_vec(), ciphertext })
}

/// Opens bytes that were sealed to the key of `seed`. Does not prevent replays.
///
/// # Errors
/// [`SealingError::DoesNotOpen`].
pub fn open(
    seed: &[u8; 32],
    context: SealContext<'_>,
    encapsulated_key: &[u8],
    ciphertext: &[u8],
) -> Result<Zeroizing<Vec<u8>>, SealingError> {
    let does_not_open = |_| SealingError::DoesNotOpen;
    let (private, _) = XWing::derive_keypair(seed);
    let encapsulated = <XWing as Kem>::EncappedKey::from_bytes(encapsulated_key).map_err(does_not_open)?;
    hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, XWing>(
        &OpModeR::Base,
        &private,
        &encapsulated,
        context.info,
        ciphertext,
        context.associated,
    )
    .map(Zeroizing::new)
    .map_err(does_not_open)
}

/// Gives HPKE our randomness.
struct HpkeRandomness<'a>(&'a dyn Entropy);

impl TryRng for HpkeRandomness<'_> {
    type Error = Infallible;

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
    use super::*;
    use crate::entropy::SystemEntropy;

    const CONTEXT: SealContext<'_> = SealContext { info: b"test v1", associated: b"subject" };

    #[test]
    fn opens_with_its_key_and_context_alone() {
        let (seed, other) = ([7; 32], [8; 32]);
        let sealed = seal(&public_key(&seed), CONTEXT, b"content", &SystemEntropy).unwrap();
        assert_eq!(sealed.ciphertext.len(), b"content".len() + TAG_BYTES);
        let open = |seed, context| open(seed, context, &sealed.encapsulated_key, &sealed.ciphertext);
        assert_eq!(open(&seed, CONTEXT).unwrap().as_slice(), b"content");
        assert_eq!(open(&other, CONTEXT), Err(SealingError::DoesNotOpen));
        assert_eq!(open(&seed, SealContext { info: b"test v2", ..CONTEXT }), Err(SealingError::DoesNotOpen));
        assert_eq!(open(&seed, SealContext { associated: b"", ..CONTEXT }), Err(SealingError::DoesNotOpen));
        assert_eq!(seal(&[7; 32], CONTEXT, b"content", &SystemEntropy), Err(SealingError::PublicKey));
    }

    #[test]
    fn both_halves_of_the_encapsulated_key_must_be_unchanged() {
        const ML_KEM_BYTES: usize = 1088;
        let seed = [7; 32];
        let sealed = seal(&public_key(&seed), CONTEXT, b"content", &SystemEntropy).unwrap();
        assert_eq!(sealed.encapsulated_key.len(), ML_KEM_BYTES + 32);
        // First and last byte of ML-KEM's ciphertext, and of X25519's key. X25519 itself ignores the highest bit of its
        // key, X-Wing does not.
        for (at, bit) in [(0, 1), (ML_KEM_BYTES - 1, 1), (ML_KEM_BYTES, 1), (ML_KEM_BYTES + 31, 0x80)] {
            let mut changed = sealed.encapsulated_key.clone();
            changed[at] ^= bit;
            assert_eq!(open(&seed, CONTEXT, &changed, &sealed.ciphertext), Err(SealingError::DoesNotOpen), "byte {at}");
        }
    }

    #[test]
    fn the_suite_is_the_one_in_use() {
        let ids =
            [XWing::KEM_ID, <HkdfSha256 as hpke::kdf::Kdf>::KDF_ID, <ChaCha20Poly1305 as hpke::aead::Aead>::AEAD_ID];
        assert_eq!(ids.map(u16::to_be_bytes).concat(), SUITE);
    }

    /// The HPKE working group's public test vector for this suite: the key pair that `ikmR` gives. The crate x-wing is
    /// tested with the vectors of the X-Wing draft.
    #[test]
    fn derives_keys_as_the_draft_says() {
        let seed: [u8; 32] = hex::decode("b86e76a59fabfc87b30cd7b1f7aaa28a834eb64e7a261c197b9a842893fbce56")
            .unwrap()
            .try_into()
            .unwrap();
        let public = public_key(&seed);
        let (ml_kem, x25519) = public.split_at(public.len() - 32);
        let first = hex::encode(&ml_kem[..32]);
        assert_eq!(first, "f5fb01a5db909ac907ecc9524de9b9eaf4997dac7d22c961267c964403825160");
        assert_eq!(hex::encode(x25519), "f571686619612d7bc8206650c1d2fc9072220e7f4d4f557f15b33dcf32e5c837");
    }
}
