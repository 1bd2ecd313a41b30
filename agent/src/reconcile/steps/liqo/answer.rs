//! Step `liqo-answer`: the origin signs the donor's challenge.

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::{Challenge, TenantRequest};
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{LiqoRecord, SecretBlob};
use comity_types::PeeringId;

use super::exchange::{self, Exchange, MessageStep, Received, Sent};
use crate::reconcile::steps::error::StepError;

/// Origin: signs the challenge and seals the answer; without an envelope, uses the one opened before.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoAnswer {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
    /// The other side's message, if it has just arrived.
    pub envelope: Option<Envelope>,
}

impl MessageStep for LiqoAnswer {
    const NAME: &'static str = "liqo-answer";

    fn received(&self) -> Received<'_> {
        Received { peering: self.peering, epoch: self.epoch, envelope: self.envelope.as_ref() }
    }

    fn store(record: &mut LiqoRecord, opened: SecretBlob) {
        (record.challenge, record.request) = (Some(opened), None);
    }

    async fn work(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
        let record = &mut exchange.record;
        if record.request.is_none() {
            let challenge = exchange::read::<Challenge>(&mut record.challenge)?;
            let request = exchange.nodes.origin.answer(&record.peer(), &challenge).await?;
            record.request = Some(SecretBlob::new(request.encode()));
        }
        let request = record.request.as_ref().ok_or(StepError::Gone("the request"))?;
        Ok(Some((TenantRequest::STEP, request.expose().to_vec())))
    }
}
