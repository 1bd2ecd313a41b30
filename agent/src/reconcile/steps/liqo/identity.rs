//! Step `liqo-identity`: the origin makes its identity at the donor.

use comity_agent_liqo::IdentityParams;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{LiqoRecord, SecretBlob};
use comity_types::PeeringId;

use super::exchange::{self, Exchange, MessageStep, Received, Sent};
use crate::reconcile::steps::api_address;
use crate::reconcile::steps::error::StepError;

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

impl MessageStep for LiqoIdentity {
    const NAME: &'static str = "liqo-identity";

    fn received(&self) -> Received<'_> {
        Received { peering: self.peering, epoch: self.epoch, envelope: self.envelope.as_ref() }
    }

    fn store(record: &mut LiqoRecord, opened: SecretBlob) {
        (record.identity, record.done) = (Some(opened), false);
    }

    async fn work(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
        let params = exchange::read::<IdentityParams>(&mut exchange.record.identity)?;
        let network = api_address::resolved(exchange.keys.side, &exchange.remote).await;
        let (own, cluster) = (exchange.member.network.as_ref(), exchange.remote.cluster.as_str());
        // The plan checked an address; a name leads to one only here.
        network
            .check(cluster, own, &exchange.service, exchange.keys.side)
            .map_err(|reason| DeliveryError::permanent("donor-api-address", format!("cluster {cluster}: {reason}")))?;
        let api_server = exchange.remote.network.api_server.as_str();
        exchange.nodes.origin.accept_identity(&exchange.record.peer(), api_server, &params).await?;
        exchange.record.done = true;
        Ok(None)
    }
}
