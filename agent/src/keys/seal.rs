//! Seals messages between two agents with [`comity_runtime::sealing`].
//!
//! The suite is fixed; the receiver's key bundle names and signs it. The binding is associated data, so that no
//! envelope can be replayed, moved or relabelled. The sender's identity key signs content and binding inside the seal,
//! so that a broker that knows all public keys cannot forge an envelope.

use comity_agent_model::envelope::{Envelope, lease_text};
use comity_agent_state::record::{HpkePublicKey, SecretKey};
use comity_proto::v1;
use comity_runtime::sealing::{self, SealContext, TAG_BYTES};
use comity_runtime::{Entropy, IdentityKey, IdentityPublicKey, IdentitySignature};
use zeroize::Zeroizing;

/// HPKE's `info`.
const INFO: &[u8] = b"comity envelope v1";
/// Domain of the sender's signature over an envelope.
const ENVELOPE_DOMAIN: &str = "envelope";
/// Length of the signature before the content.
const SIGNATURE_BYTES: usize = 64;
/// Most bytes of content: an envelope's 64 KiB less signature and tag.
pub const MAX_CONTENT_BYTES: usize = (64 << 10) - SIGNATURE_BYTES - TAG_BYTES;

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
    HpkePublicKey::from_bytes(&sealing::public_key(secret.expose())).expect("a derived key is valid")
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
    let associated = binding.bytes();
    let signature = signer.sign(ENVELOPE_DOMAIN, &[&associated, content]);
    let plain = Zeroizing::new([signature.as_bytes().as_slice(), content].concat());
    let context = SealContext { info: INFO, associated: &associated };
    let sealed = sealing::seal(receiver.as_bytes(), context, &plain, entropy)
        .map_err(|_| SealError::BadKey { cluster: binding.to.clone() })?;
    Ok(v1::Envelope {
        peering: binding.peering.clone(),
        epoch: binding.epoch,
        lease: binding.lease.clone(),
        step: binding.step.clone(),
        sequence: binding.sequence,
        from: binding.from.clone(),
        to: binding.to.clone(),
        encapsulated_key: sealed.encapsulated_key,
        ciphertext: sealed.ciphertext,
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
    let context = SealContext { info: INFO, associated: &associated };
    let plain = sealing::open(secret.expose(), context, &envelope.encapsulated_key, &envelope.ciphertext)
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::{SeededEntropy, SystemEntropy};
    use comity_types::{LeaseId, PeeringId};

    use super::*;

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
}
