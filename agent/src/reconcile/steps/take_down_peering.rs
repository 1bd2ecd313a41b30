//! Steps `close-peering` and `forget-peering`: remove the tunnel and its keys.

use comity_agent_state::record::ReportKey;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError};

pub(super) async fn close(context: &Context, peering: &str, epoch: u32) -> Result<(), StepError> {
    take_down(context, peering);
    let outcome = v1::peering_report::Outcome::Closed(v1::peering_report::Closed {});
    let report = v1::PeeringReport { peering: peering.to_owned(), epoch, outcome: Some(outcome) };
    let peering = peering.to_owned();
    let update = context.store.update(move |change| {
        drop_epochs(change, &peering, None);
        change.send(ReportKey::Closed(peering), Body::PeeringReport(report));
    });
    Ok(update.await?)
}

pub(super) async fn forget(context: &Context, peering: &str, before: Option<u32>) -> Result<(), StepError> {
    if before.is_none() {
        take_down(context, peering);
    }
    let peering = peering.to_owned();
    let update = context.store.update(move |change| {
        drop_epochs(change, &peering, before);
        if before.is_none() {
            change.drop_closed(&peering);
        }
    });
    Ok(update.await?)
}

fn take_down(context: &Context, peering: &str) {
    context.fabric.remove_peer(peering);
    let mut running = context.running();
    running.exposures.remove(peering);
    running.tunnels.remove(peering);
}

fn drop_epochs(change: &mut comity_agent_state::store::Change<'_>, peering: &str, before: Option<u32>) {
    let epochs: Vec<u32> = change.records().epochs(peering).map(|record| record.epoch).collect();
    for epoch in epochs.into_iter().filter(|epoch| before.is_none_or(|before| *epoch < before)) {
        change.drop_peering(peering, epoch);
    }
}
