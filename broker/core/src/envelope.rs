//! Sealed messages between two agents. The broker carries them and cannot read them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::blob::Blob;
use crate::id::{ClusterId, LeaseId, PeeringId};
use crate::limits::MAX_ENVELOPE_BYTES;
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// Steps that travel in envelopes, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Donor → origin: WireGuard pre-shared key and a nonce.
    Psk,
    /// Origin → donor: proof that it opened the step before.
    Proof,
    /// Donor → origin: the lease's credential.
    Credential,
}

impl Step {
    /// The text form used in the API and in the associated data.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Psk => "psk",
            Self::Proof => "proof",
            Self::Credential => "credential",
        }
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        match text {
            "psk" => Ok(Self::Psk),
            "proof" => Ok(Self::Proof),
            "credential" => Ok(Self::Credential),
            _ => Err(Refusal::invalid("envelope.step", text, "is not a step", "use psk, proof or credential")),
        }
    }
}

/// What makes an envelope one of its kind: it is bound into the associated data, so none can be replayed or moved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvelopeKey {
    /// Receiver; first, so that one cluster's envelopes lie together.
    pub to: ClusterId,
    /// Peering.
    pub peering: PeeringId,
    /// Epoch.
    pub epoch: u32,
    /// Lease; `None` for the peering itself.
    pub lease: Option<LeaseId>,
    /// Step.
    pub step: Step,
    /// Sequence within all of the above, from 1.
    pub sequence: u64,
}

/// JSON maps want text keys: "to/peer-1/1/lease-2/credential/1", with "-" for no lease.
impl Serialize for EnvelopeKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let lease = self.lease.map_or_else(|| "-".to_owned(), |lease| lease.to_string());
        serializer.collect_str(&format_args!(
            "{}/{}/{}/{lease}/{}/{}",
            self.to,
            self.peering,
            self.epoch,
            self.step.as_str(),
            self.sequence
        ))
    }
}

impl<'de> Deserialize<'de> for EnvelopeKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an envelope key")))
    }
}

impl EnvelopeKey {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let mut next = || parts.next();
        let key = Self {
            to: ClusterId::parse(next()?, "to").ok()?,
            peering: next()?.parse().ok()?,
            epoch: next()?.parse().ok()?,
            lease: match next()? {
                "-" => None,
                lease => Some(lease.parse().ok()?),
            },
            step: Step::parse(next()?).ok()?,
            sequence: next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(key)
    }
}

/// A sealed message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// What it is.
    pub key: EnvelopeKey,
    /// Sender.
    pub from: ClusterId,
    /// HPKE encapsulated key.
    pub encapsulated_key: Blob,
    /// HPKE ciphertext.
    pub ciphertext: Blob,
    /// When it is deleted unread.
    pub expires_at: Timestamp,
}

impl Envelope {
    /// Checks form and bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.encapsulated_key.len() != 32 {
            return Err(Refusal::invalid(
                "envelope.encapsulated_key",
                format!("{} bytes", self.encapsulated_key.len()),
                "has the wrong length",
                "send 32 bytes",
            ));
        }
        if self.ciphertext.is_empty() || self.ciphertext.len() > MAX_ENVELOPE_BYTES {
            return Err(Refusal::invalid(
                "envelope.ciphertext",
                format!("{} bytes", self.ciphertext.len()),
                "is empty or too large",
                format!("send at most {MAX_ENVELOPE_BYTES} bytes"),
            ));
        }
        if self.key.sequence == 0 {
            return Err(Refusal::invalid("envelope.sequence", 0, "is not a sequence", "count from 1"));
        }
        Ok(())
    }
}
