//! Step `discard-envelope`: acknowledges an envelope that nobody needs.

use comity_agent_model::envelope::EnvelopeKey;
use comity_agent_state::record::ReportKey;
use comity_proto::v1::agent_message::Body;

use super::error::StepError;
use super::kind::Kind;
use crate::reconcile::parts::Parts;

/// Acknowledges an envelope that nobody needs.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscardEnvelope {
    /// The envelope.
    pub key: EnvelopeKey,
}

impl Kind for DiscardEnvelope {
    const NAME: &'static str = "discard-envelope";

    fn object(&self) -> String {
        let Self { key } = self;
        key.lease.map_or_else(|| key.peering.to_string(), |lease| lease.to_string())
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let key = self.key.clone();
        Ok(store
            .update(move |change| change.send(ReportKey::EnvelopeAck(key.clone()), Body::EnvelopeAck(key.ack())))
            .await?)
    }
}
