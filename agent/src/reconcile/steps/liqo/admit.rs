//! Step `liqo-admit`: the donor makes the origin a tenant of its Liqo.

use std::time::Duration;

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::{IdentityParams, TenantRequest};
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::SecretBlob;
use comity_types::PeeringId;

use super::exchange::{self, Exchange, Sent};
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: makes the origin a tenant of Liqo and seals its identity; without an envelope, uses the one opened before.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoAdmit {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
    /// The other side's message, if it has just arrived.
    pub envelope: Option<Envelope>,
}

impl Kind for LiqoAdmit {
    const NAME: &'static str = "liqo-admit";

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
            (exchange.record.request, exchange.record.done) = (Some(opened), false);
        }
        let done = admit(&mut exchange).await;
        exchange.finish(self.envelope.as_ref(), done).await
    }
}

async fn admit(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
    let record = &mut exchange.record;
    if !record.done {
        let request = exchange::read::<TenantRequest>(&mut record.request)?;
        let identity = exchange.nodes.donor.admit_tenant(&record.peer(), &request).await?;
        record.identity = Some(SecretBlob::new(identity.encode()));
        record.done = true;
    }
    let identity = record.identity.as_ref().ok_or(StepError::Gone("the identity"))?;
    Ok(Some((IdentityParams::STEP, identity.expose().to_vec())))
}
