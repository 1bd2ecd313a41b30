//! Step `liqo-identity`: the origin makes its identity at the donor.

use std::time::Duration;

use comity_agent_liqo::IdentityParams;
use comity_agent_model::envelope::Envelope;
use comity_types::PeeringId;

use super::exchange::{self, Exchange, Sent};
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: makes its identity at the donor; without an envelope, uses the one opened before.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoIdentity {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
    /// The other side's message, if it has just arrived.
    pub envelope: Option<Envelope>,
}

impl Kind for LiqoIdentity {
    const NAME: &'static str = "liqo-identity";

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
            (exchange.record.identity, exchange.record.done) = (Some(opened), false);
        }
        let done = accept(&mut exchange).await;
        exchange.finish(self.envelope.as_ref(), done).await
    }
}

async fn accept(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
    let params = exchange::read::<IdentityParams>(&mut exchange.record.identity)?;
    let api_server = exchange.remote.network.api_server.as_str();
    exchange.nodes.origin.accept_identity(&exchange.record.peer(), api_server, &params).await?;
    exchange.record.done = true;
    Ok(None)
}
