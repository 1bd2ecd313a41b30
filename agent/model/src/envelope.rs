//! Envelopes: sealed messages between the two agents of a peering, as the broker relays them.

use comity_proto::v1;
use comity_types::{ClusterId, InvalidId, LeaseId, PeeringId};
use serde::{Deserialize, Serialize};

/// Identifies an envelope among those for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EnvelopeKey {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch whose key it is sealed to.
    pub epoch: u32,
    /// The lease; `None` if it is about the peering itself.
    pub lease: Option<LeaseId>,
    /// Kind of its content.
    pub step: String,
    /// Sequence, from 1.
    pub sequence: u64,
}

impl EnvelopeKey {
    /// The acknowledgement of the envelope.
    #[must_use]
    pub fn ack(&self) -> v1::EnvelopeAck {
        v1::EnvelopeAck {
            peering: self.peering.to_string(),
            epoch: self.epoch,
            lease: lease_text(self.lease),
            step: self.step.clone(),
            sequence: self.sequence,
        }
    }
}

/// An envelope for this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Identifies it among the envelopes for one cluster.
    pub key: EnvelopeKey,
    /// The claimed sender.
    pub from: ClusterId,
    /// The receiver.
    pub to: ClusterId,
    /// HPKE's encapsulated key.
    pub encapsulated_key: Vec<u8>,
    /// The sealed content.
    pub ciphertext: Vec<u8>,
}

impl TryFrom<v1::Envelope> for Envelope {
    type Error = InvalidId;

    fn try_from(envelope: v1::Envelope) -> Result<Self, InvalidId> {
        let lease = Some(envelope.lease).filter(|lease| !lease.is_empty());
        let key = EnvelopeKey {
            peering: PeeringId::parse(&envelope.peering, "envelope.peering")?,
            epoch: envelope.epoch,
            lease: lease.map(|lease| LeaseId::parse(&lease, "envelope.lease")).transpose()?,
            step: envelope.step,
            sequence: envelope.sequence,
        };
        Ok(Self {
            key,
            from: ClusterId::parse(&envelope.from, "envelope.from")?,
            to: ClusterId::parse(&envelope.to, "envelope.to")?,
            encapsulated_key: envelope.encapsulated_key,
            ciphertext: envelope.ciphertext,
        })
    }
}

/// A lease as messages name it: empty if there is none.
#[must_use]
pub fn lease_text(lease: Option<LeaseId>) -> String {
    lease.map(|lease| lease.to_string()).unwrap_or_default()
}
