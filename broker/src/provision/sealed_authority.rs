//! Seals the authority's private key for a new broker, with [`comity_runtime::sealing`].
//!
//! The new broker makes a key pair for one join. Logs, traces and whatever terminates TLS on the way see ciphertext
//! only. TLS authenticates the sender, by the root certificate that the token pins, and the opened key must belong to
//! that root.

use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::entropy::Entropy;
use comity_runtime::sealing::{self, SealContext, Sealed};
use comity_runtime::secret::SecretString;
use comity_runtime::spiffe::SpiffeId;
use zeroize::Zeroizing;

/// HPKE's `info`.
const INFO: &[u8] = b"comity authority key v1";

/// Bytes of the seed of a sealing key.
pub const SEALING_SEED_BYTES: usize = 32;

/// Why the authority cannot be sealed or opened. Never holds the key.
#[derive(Debug, thiserror::Error)]
pub enum SealedAuthorityError {
    /// The receiver's public key is invalid.
    #[error("the sealing key is not an X-Wing public key")]
    SealingKey,
    /// It does not open: changed, or sealed for another broker or key.
    #[error("the authority's key does not open: it was changed, or is sealed for another broker")]
    DoesNotOpen,
    /// The opened key is not that of the root certificate.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// The key pair of one join.
pub struct SealingKey {
    seed: Zeroizing<[u8; SEALING_SEED_BYTES]>,
    public: Vec<u8>,
}

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealingKey").finish_non_exhaustive()
    }
}

impl SealingKey {
    /// Makes a key pair.
    #[must_use]
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0; SEALING_SEED_BYTES]);
        entropy.fill(seed.as_mut_slice());
        Self::of_seed(seed)
    }

    /// The key pair of a secret seed.
    #[must_use]
    pub fn of_seed(seed: Zeroizing<[u8; SEALING_SEED_BYTES]>) -> Self {
        let public = sealing::public_key(&seed);
        Self { seed, public }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Opens an authority that was sealed for `broker`.
    ///
    /// # Errors
    /// [`SealedAuthorityError`].
    pub fn open(
        &self,
        sealed: &Sealed,
        root_pem: &str,
        broker: &SpiffeId,
    ) -> Result<CertificateAuthority, SealedAuthorityError> {
        let does_not_open = || SealedAuthorityError::DoesNotOpen;
        let subject = broker.to_string();
        let context = SealContext { info: INFO, associated: subject.as_bytes() };
        let plain = sealing::open(&self.seed, context, &sealed.encapsulated_key, &sealed.ciphertext)
            .map_err(|_| does_not_open())?;
        let pem = std::str::from_utf8(&plain).map_err(|_| does_not_open())?;
        Ok(CertificateAuthority::from_pem(root_pem, &SecretString::new(pem.to_owned()))?)
    }
}

/// Seals the authority's key to the public key of `broker`, which the ciphertext is bound to.
///
/// # Errors
/// [`SealedAuthorityError::SealingKey`].
pub fn seal_authority(
    ca: &CertificateAuthority,
    broker: &SpiffeId,
    sealing_key: &[u8],
    entropy: &dyn Entropy,
) -> Result<Sealed, SealedAuthorityError> {
    let subject = broker.to_string();
    let context = SealContext { info: INFO, associated: subject.as_bytes() };
    sealing::seal(sealing_key, context, ca.key_pem().expose().as_bytes(), entropy)
        .map_err(|_| SealedAuthorityError::SealingKey)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use comity_runtime::entropy::SystemEntropy;
    use comity_runtime::spiffe::TrustDomain;

    use super::*;

    fn authority() -> CertificateAuthority {
        CertificateAuthority::create(TrustDomain::new("dev.test").unwrap(), SystemTime::now()).unwrap()
    }

    fn broker(number: u64) -> SpiffeId {
        SpiffeId::broker(TrustDomain::new("dev.test").unwrap(), number)
    }

    #[test]
    fn the_key_opens_for_its_broker_and_sealing_key_alone() {
        let (ca, key) = (authority(), SealingKey::generate(&SystemEntropy));
        let sealed = seal_authority(&ca, &broker(2), key.public(), &SystemEntropy).unwrap();
        let opened = key.open(&sealed, ca.root_pem(), &broker(2)).unwrap();
        assert_eq!(opened.key_pem().expose(), ca.key_pem().expose());
        assert!(matches!(key.open(&sealed, ca.root_pem(), &broker(3)), Err(SealedAuthorityError::DoesNotOpen)));
        let other = SealingKey::generate(&SystemEntropy);
        assert!(matches!(other.open(&sealed, ca.root_pem(), &broker(2)), Err(SealedAuthorityError::DoesNotOpen)));
        let mut changed = sealed.clone();
        changed.ciphertext[0] ^= 1;
        assert!(matches!(key.open(&changed, ca.root_pem(), &broker(2)), Err(SealedAuthorityError::DoesNotOpen)));
        let stranger = authority();
        let opened = key.open(&sealed, stranger.root_pem(), &broker(2));
        assert!(matches!(opened, Err(SealedAuthorityError::Authority(_))));
    }

    #[test]
    fn the_sealed_form_does_not_hold_the_key() {
        let (ca, key) = (authority(), SealingKey::generate(&SystemEntropy));
        let sealed = seal_authority(&ca, &broker(2), key.public(), &SystemEntropy).unwrap();
        let pem = ca.key_pem();
        let line = pem.expose().lines().nth(1).unwrap().as_bytes();
        assert!(!sealed.ciphertext.windows(line.len()).any(|window| window == line));
        assert!(!format!("{sealed:?} {key:?}").contains("PRIVATE KEY"));
        assert!(seal_authority(&ca, &broker(2), &[7; 32], &SystemEntropy).is_err());
    }
}
