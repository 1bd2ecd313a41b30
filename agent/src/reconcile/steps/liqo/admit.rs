//! Step `liqo-admit`: the donor makes the origin a tenant of its Liqo.

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::{IdentityParams, TenantRequest};
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{LiqoRecord, SecretBlob};
use comity_types::PeeringId;

use super::exchange::{self, Exchange, MessageStep, Received, Sent};
use crate::reconcile::steps::error::StepError;

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

impl MessageStep for LiqoAdmit {
    const NAME: &'static str = "liqo-admit";

    fn received(&self) -> Received<'_> {
        Received { peering: self.peering, epoch: self.epoch, envelope: self.envelope.as_ref() }
    }

    fn store(record: &mut LiqoRecord, opened: SecretBlob) {
        (record.request, record.done) = (Some(opened), false);
    }

    async fn work(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
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
}
