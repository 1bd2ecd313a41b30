//! Step `discard-envelope`: acknowledges an envelope that nobody needs.

use std::borrow::Cow;

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::error::StepError;
use super::kind::Kind;
use crate::reconcile::envelope::ack_key;
use crate::reconcile::parts::Parts;

/// Acknowledges an envelope that nobody needs.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscardEnvelope {
    /// The acknowledgement.
    pub ack: v1::EnvelopeAck,
}

impl Kind for DiscardEnvelope {
    const NAME: &'static str = "discard-envelope";

    fn object(&self) -> Cow<'_, str> {
        let Self { ack } = self;
        Cow::Borrowed(if ack.lease.is_empty() { &ack.peering } else { &ack.lease })
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let (key, ack) = (ack_key(&self.ack), self.ack.clone());
        Ok(store.update(move |change| change.send(key, Body::EnvelopeAck(ack))).await?)
    }
}
