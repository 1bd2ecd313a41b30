//! Step `liqo-answer`: the origin signs the donor's challenge.

use std::time::Duration;

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::{Challenge, TenantRequest};
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::SecretBlob;
use comity_types::PeeringId;

use super::exchange::{self, Exchange, Sent};
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

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

impl Kind for LiqoAnswer {
    const NAME: &'static str = "liqo-answer";

    fn object(&self) -> String {
        exchange::object(self.peering)
    }

    fn deadline(&self) -> Duration {
        exchange::DEADLINE
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let mut exchange = Exchange::begin(parts, self.peering, self.epoch)?;
        if let Some(envelope) = &self.envelope {
            let Some(opened) = exchange.open(envelope).await? else { return Ok(()) };
            (exchange.record.challenge, exchange.record.request) = (Some(opened), None);
        }
        let done = answer(&mut exchange).await;
        exchange.finish(self.envelope.as_ref(), done).await
    }
}

async fn answer(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
    let record = &mut exchange.record;
    if record.request.is_none() {
        let challenge = exchange::read::<Challenge>(&mut record.challenge)?;
        let request = exchange.nodes.origin.answer(&record.peer(), &challenge).await?;
        record.request = Some(SecretBlob::new(request.encode()));
    }
    let request = record.request.as_ref().ok_or(StepError::Gone("the request"))?;
    Ok(Some((TenantRequest::STEP, request.expose().to_vec())))
}
