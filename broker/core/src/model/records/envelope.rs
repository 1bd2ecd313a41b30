//! Sealed messages between two agents. The broker relays them and cannot read them.

use comity_types::{ClusterId, LeaseId, PeeringId, PeeringState, Side};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::blob::Blob;
use crate::model::limits::{HPKE_ENCAPSULATED_BYTES, MAX_ENVELOPE_BYTES};
use crate::model::refusal::Refusal;
use crate::model::time::Timestamp;

/// Handshake steps that travel in envelopes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Donor → origin: WireGuard pre-shared key and a nonce.
    Psk,
    /// Origin → donor: proof that it opened the previous envelope.
    Proof,
    /// Donor → origin: the lease's credential.
    Credential,
    /// Donor → origin: the nonce that the origin's Liqo signs.
    LiqoChallenge,
    /// Origin → donor: the origin's Liqo identity, a request for a certificate, and the signed nonce.
    LiqoTenant,
    /// Donor → origin: the certificate with which the origin's Liqo reaches its tenant namespace.
    LiqoIdentity,
    /// Donor → origin: the networks of the donor's Liqo, and the key and endpoint of its gateway.
    LiqoServer,
    /// Origin → donor: the networks of the origin's Liqo, and the key of its gateway.
    LiqoClient,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 8] = [
        Self::Psk,
        Self::Proof,
        Self::Credential,
        Self::LiqoChallenge,
        Self::LiqoTenant,
        Self::LiqoIdentity,
        Self::LiqoServer,
        Self::LiqoClient,
    ];

    /// The sending side; the other side receives.
    #[must_use]
    pub fn sender(self) -> Side {
        match self {
            Self::Psk | Self::Credential | Self::LiqoChallenge | Self::LiqoIdentity | Self::LiqoServer => Side::Donor,
            Self::Proof | Self::LiqoTenant | Self::LiqoClient => Side::Origin,
        }
    }

    /// Whether it belongs to one lease instead of the peering.
    #[must_use]
    pub fn is_of_a_lease(self) -> bool {
        self == Self::Credential
    }

    /// Whether a peering in `state` accepts it. Liqo's exchange needs both sides' verified keys but not the tunnel, so
    /// it runs in parallel with the tunnel setup.
    #[must_use]
    pub fn fits(self, state: PeeringState) -> bool {
        use PeeringState::{Authenticating, Established, Establishing};
        match self {
            Self::Psk | Self::Proof => state == Authenticating,
            Self::Credential => matches!(state, Establishing | Established),
            Self::LiqoChallenge | Self::LiqoTenant | Self::LiqoIdentity | Self::LiqoServer | Self::LiqoClient => {
                matches!(state, Authenticating | Establishing | Established)
            }
        }
    }

    /// The text form used in the API and in the associated data.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Psk => "psk",
            Self::Proof => "proof",
            Self::Credential => "credential",
            Self::LiqoChallenge => "liqo-challenge",
            Self::LiqoTenant => "liqo-tenant",
            Self::LiqoIdentity => "liqo-identity",
            Self::LiqoServer => "liqo-server",
            Self::LiqoClient => "liqo-client",
        }
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::ALL.into_iter().find(|step| step.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Refusal::invalid("envelope.step", text, "is not a step", format!("use one of: {names}"))
        })
    }
}

/// Identifies an envelope. The associated data includes it, so nobody can replay or move an envelope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvelopeKey {
    /// The receiver. First, so that the envelopes for one cluster are adjacent.
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

/// JSON maps need text keys: "to/peer-1/1/lease-2/credential/1", with "-" for no lease.
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
    /// Its identity.
    pub key: EnvelopeKey,
    /// Sender.
    pub from: ClusterId,
    /// HPKE encapsulated key (X-Wing), [`HPKE_ENCAPSULATED_BYTES`] bytes.
    pub encapsulated_key: Blob,
    /// HPKE ciphertext.
    pub ciphertext: Blob,
    /// When the broker deletes it, even if unread.
    pub expires_at: Timestamp,
}

impl Envelope {
    /// Checks form and bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.encapsulated_key.len() != HPKE_ENCAPSULATED_BYTES {
            return Err(Refusal::invalid(
                "envelope.encapsulated_key",
                format!("{} bytes", self.encapsulated_key.len()),
                "has the wrong length",
                format!("send {HPKE_ENCAPSULATED_BYTES} bytes"),
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
