//! Step `liqo-network`: the two sides send each other the state of their Liqos' networks.

use comity_agent_liqo::network::NetworkState;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::record::{LiqoRecord, NetworkRecord, ReportKey};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, Exchange, StepError, note_opened};

/// Stores the other side's state; without an envelope, sends this side's.
pub(in crate::reconcile::steps) async fn take(
    context: &Context,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    let network = exchange.record.standing_network().cloned();
    let mut network = network.ok_or(StepError::Gone("the network of the two Liqos"))?;
    match envelope {
        Some(envelope) => {
            let Some(opened) = exchange.open(context, envelope).await? else { return Ok(()) };
            let allowed = context.node_service.borrow().peer_networks.clone();
            match NetworkState::read(exchange.keys.side.other(), opened.expose(), &allowed) {
                Ok(state) => network.remote = Some(state),
                Err(DeliveryError::Permanent { code, message }) => exchange.note_failure(context, code, &message),
                Err(error) => return Err(error.into()),
            }
            exchange.record.network = Some(network);
            keep_opened(context, exchange.record, envelope).await
        }
        None => send_state(context, exchange, network).await,
    }
}

async fn keep_opened(context: &Context, record: LiqoRecord, envelope: &v1::Envelope) -> Result<(), StepError> {
    let envelope = envelope.clone();
    let update = context.store.update(move |change| {
        change.put_liqo(record);
        note_opened(change, &envelope);
    });
    Ok(update.await?)
}

async fn send_state(context: &Context, mut exchange: Exchange, mut network: NetworkRecord) -> Result<(), StepError> {
    let peering = exchange.keys.peering.clone();
    let seen = context.networks.borrow().get(&peering).and_then(|seen| seen.local.clone());
    let local = seen.ok_or(StepError::Gone("what was seen of this side's network"))?;
    network.last_sequence += 1;
    let step = NetworkState::step(exchange.keys.side);
    let (envelope, sealed) = exchange.seal(context, step, network.last_sequence, &local.encode())?;
    network.sealed = Some(sealed);
    network.told = Some(local);
    exchange.record.network = Some(network);
    let record = exchange.record;
    let update = context.store.update(move |change| {
        change.put_liqo(record);
        change.send(ReportKey::LiqoNetwork(peering), Body::Envelope(envelope));
    });
    Ok(update.await?)
}
