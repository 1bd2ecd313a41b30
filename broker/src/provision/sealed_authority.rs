//! Seals what the brokers of a group share for a new one, with [`comity_runtime::sealing`]: the intermediate with its
//! key, and the key of join tokens.
//!
//! The new broker makes a key pair for one join. Logs, traces and whatever terminates TLS on the way see ciphertext
//! only. TLS authenticates the sender, by the root certificate that the token pins, and the opened intermediate must
//! belong to the roots.

use std::sync::Arc;

use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::entropy::Entropy;
use comity_runtime::sealing::{self, SealContext, Sealed};
use comity_runtime::secret::SecretString;
use comity_runtime::spiffe::SpiffeId;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::provision::invitation_key::InvitationKey;

/// HPKE's `info`.
const INFO: &[u8] = b"comity authority v1";

/// Bytes of the seed of a sealing key.
pub const SEALING_SEED_BYTES: usize = 32;

/// Why the authority cannot be sealed or opened. Never holds the key.
#[derive(Debug, thiserror::Error)]
pub enum SealedAuthorityError {
    /// The receiver's public key is invalid.
    #[error("the sealing key is not an X-Wing public key")]
    SealingKey,
    /// It does not open: changed, or sealed for another broker or key.
    #[error("the authority does not open: it was changed, or is sealed for another broker")]
    DoesNotOpen,
    /// The opened intermediate does not belong to the roots.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// What all brokers of a group hold.
#[derive(Debug, Clone)]
pub struct GroupSecrets {
    /// The authority.
    pub authority: Arc<CertificateAuthority>,
    /// The key of join tokens.
    pub invitation_key: InvitationKey,
}

/// The plaintext, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content<'a> {
    /// Has escapes, so that it is not borrowed.
    chain_pem: String,
    key_pem: String,
    invitation_key: &'a str,
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

    /// Opens what was sealed for `broker`.
    ///
    /// # Errors
    /// [`SealedAuthorityError`].
    pub fn open(
        &self,
        sealed: &Sealed,
        root_pem: &str,
        broker: &SpiffeId,
    ) -> Result<GroupSecrets, SealedAuthorityError> {
        let does_not_open = || SealedAuthorityError::DoesNotOpen;
        let subject = broker.to_string();
        let context = SealContext { info: INFO, associated: subject.as_bytes() };
        let plain = sealing::open(&self.seed, context, &sealed.encapsulated_key, &sealed.ciphertext)
            .map_err(|_| does_not_open())?;
        GroupSecrets::parse(&plain, root_pem)
    }
}

impl GroupSecrets {
    /// Reads what was opened.
    fn parse(plain: &[u8], root_pem: &str) -> Result<Self, SealedAuthorityError> {
        let does_not_open = || SealedAuthorityError::DoesNotOpen;
        let content: Content<'_> = serde_json::from_slice(plain).map_err(|_| does_not_open())?;
        let key = SecretString::new(content.key_pem);
        let authority = Arc::new(CertificateAuthority::from_pem(&content.chain_pem, &key, root_pem)?);
        let invitation_key = InvitationKey::from_hex(content.invitation_key).ok_or_else(does_not_open)?;
        Ok(Self { authority, invitation_key })
    }

    /// Seals to the public key of `broker`, which the ciphertext is bound to.
    ///
    /// # Errors
    /// [`SealedAuthorityError::SealingKey`].
    pub fn seal(
        &self,
        broker: &SpiffeId,
        sealing_key: &[u8],
        entropy: &dyn Entropy,
    ) -> Result<Sealed, SealedAuthorityError> {
        let subject = broker.to_string();
        let context = SealContext { info: INFO, associated: subject.as_bytes() };
        let invitation_key = self.invitation_key.to_hex();
        let mut content = Content {
            chain_pem: self.authority.chain_pem().to_owned(),
            key_pem: self.authority.key_pem().expose().clone(),
            invitation_key: &invitation_key,
        };
        let plain = serde_json::to_vec(&content).map(Zeroizing::new);
        content.key_pem.zeroize();
        let plain = plain.map_err(|_| SealedAuthorityError::DoesNotOpen)?;
        sealing::seal(sealing_key, context, &plain, entropy).map_err(|_| SealedAuthorityError::SealingKey)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use comity_fuzz::fuzz;
    use comity_runtime::entropy::SystemEntropy;
    use comity_runtime::spiffe::TrustDomain;

    use super::*;

    fn group_secrets() -> GroupSecrets {
        let domain = TrustDomain::new("dev.test").unwrap();
        GroupSecrets {
            authority: Arc::new(CertificateAuthority::create(domain, SystemTime::now()).unwrap()),
            invitation_key: InvitationKey::draw(&SystemEntropy),
        }
    }

    fn broker(number: u64) -> SpiffeId {
        SpiffeId::broker(TrustDomain::new("dev.test").unwrap(), number)
    }

    #[test]
    fn the_authority_opens_for_its_broker_and_sealing_key_alone() {
        let (secrets, key) = (group_secrets(), SealingKey::generate(&SystemEntropy));
        let roots = secrets.authority.root_pem();
        let sealed = secrets.seal(&broker(2), key.public(), &SystemEntropy).unwrap();
        let opened = key.open(&sealed, roots, &broker(2)).unwrap();
        assert_eq!(opened.authority.key_pem().expose(), secrets.authority.key_pem().expose());
        assert_eq!(opened.invitation_key.to_hex(), secrets.invitation_key.to_hex());
        assert!(matches!(key.open(&sealed, roots, &broker(3)), Err(SealedAuthorityError::DoesNotOpen)));
        let other = SealingKey::generate(&SystemEntropy);
        assert!(matches!(other.open(&sealed, roots, &broker(2)), Err(SealedAuthorityError::DoesNotOpen)));
        let mut changed = sealed.clone();
        changed.ciphertext[0] ^= 1;
        assert!(matches!(key.open(&changed, roots, &broker(2)), Err(SealedAuthorityError::DoesNotOpen)));
        let opened = key.open(&sealed, group_secrets().authority.root_pem(), &broker(2));
        assert!(matches!(opened, Err(SealedAuthorityError::Authority(_))));
    }

    #[test]
    fn authorities_that_were_sealed() {
        let secrets = group_secrets();
        let (roots, invitation_key) = (secrets.authority.root_pem().to_owned(), secrets.invitation_key.to_hex());
        let content = Content {
            chain_pem: secrets.authority.chain_pem().to_owned(),
            key_pem: secrets.authority.key_pem().expose().clone(),
            invitation_key: &invitation_key,
        };
        let secret = content.key_pem.lines().nth(1).unwrap().to_owned();
        let (plain, key) = (serde_json::to_vec(&content).unwrap(), SealingKey::generate(&SystemEntropy));
        // Anybody who has the public key can make a sealed form, so what it holds is checked as well.
        fuzz!("sealed_authority", vec![plain], move |plain: &[u8]| {
            let sealed = Sealed { encapsulated_key: plain.to_vec(), ciphertext: plain.to_vec() };
            let opened = key.open(&sealed, &roots, &broker(2));
            assert!(matches!(opened, Err(SealedAuthorityError::DoesNotOpen)), "{opened:?}");
            match GroupSecrets::parse(plain, &roots) {
                Ok(read) => {
                    assert_eq!(read.authority.root_pem(), roots, "the roots are those of the token");
                    true
                }
                Err(error) => {
                    assert!(!format!("{error} {error:?}").contains(&secret), "{error}");
                    false
                }
            }
        });
    }

    #[test]
    fn the_sealed_form_does_not_hold_the_key() {
        let (secrets, key) = (group_secrets(), SealingKey::generate(&SystemEntropy));
        let sealed = secrets.seal(&broker(2), key.public(), &SystemEntropy).unwrap();
        let pem = secrets.authority.key_pem();
        let line = pem.expose().lines().nth(1).unwrap().as_bytes();
        assert!(!sealed.ciphertext.windows(line.len()).any(|window| window == line));
        assert!(!format!("{sealed:?} {key:?} {secrets:?}").contains("PRIVATE KEY"));
        assert!(secrets.seal(&broker(2), &[7; 32], &SystemEntropy).is_err());
    }
}
