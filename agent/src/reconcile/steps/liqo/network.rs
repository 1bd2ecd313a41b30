//! Step `liqo-network`: the two sides send each other the state of their Liqos' networks.

use comity_agent_liqo::network::{NetworkState, Networks};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{NetworkRecord, ReportKey};
use comity_proto::v1::agent_message::Body;
use comity_types::PeeringId;
use tokio::sync::watch;

use super::exchange::{self, Exchange};
use crate::reconcile::envelope::note_opened;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Records the other side's Liqo network; without an envelope, sends this side's.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoNetwork {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
    /// The other side's message, if it has just arrived.
    pub envelope: Option<Envelope>,
}

impl Kind for LiqoNetwork {
    const NAME: &'static str = "liqo-network";

    fn object(&self) -> String {
        exchange::object(self.peering)
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let mut exchange = Exchange::begin(parts, self.peering, self.epoch)?;
        let network = exchange.record.active_network().cloned();
        let mut network = network.ok_or(StepError::Gone("the network of the two Liqos"))?;
        let Some(envelope) = &self.envelope else { return send_state(exchange, network, &parts.networks).await };
        let Some(opened) = exchange.open(envelope).await? else { return Ok(()) };
        let allowed = parts.deliveries.peer_networks();
        match NetworkState::read(exchange.keys.side.other(), opened.expose(), &allowed) {
            Ok(state) => network.remote = Some(state),
            Err(DeliveryError::Permanent { code, message }) => exchange.note_failure(code, &message),
            Err(error) => return Err(error.into()),
        }
        exchange.record.network = Some(network);
        let (record, key) = (exchange.record, envelope.key.clone());
        let update = parts.store.update(move |change| {
            change.put_liqo(record);
            note_opened(change, &key);
        });
        Ok(update.await?)
    }
}

async fn send_state(
    mut exchange: Exchange<'_>,
    mut network: NetworkRecord,
    networks: &watch::Sender<Networks>,
) -> Result<(), StepError> {
    let peering = exchange.keys.peering;
    let seen = networks.borrow().get(&peering).and_then(|seen| seen.local.clone());
    let local = seen.ok_or(StepError::Gone("what was seen of this side's network"))?;
    network.last_sequence += 1;
    let step = NetworkState::step(exchange.keys.side);
    let (envelope, sealed) = exchange.seal(step, network.last_sequence, &local.encode())?;
    network.sealed = Some(sealed);
    network.sent = Some(local);
    exchange.record.network = Some(network);
    let record = exchange.record;
    let update = exchange.store.update(move |change| {
        change.put_liqo(record);
        change.send(ReportKey::LiqoNetwork(peering), Body::Envelope(envelope));
    });
    Ok(update.await?)
}
