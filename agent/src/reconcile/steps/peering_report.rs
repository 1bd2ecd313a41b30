//! Step `fail-peering`: an epoch failed; the broker opens the next one, with fresh keys.

use comity_agent_state::record::ReportKey;
use comity_agent_state::store::Change;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, note_opened, shortened};

pub(super) async fn fail(
    context: &Context,
    peering: &str,
    epoch: u32,
    code: &str,
    message: &str,
) -> Result<(), StepError> {
    tracing::warn!(peering, epoch, code, message, "this epoch of the peering cannot go on");
    let (peering, code, message) = (peering.to_owned(), code.to_owned(), shortened(message));
    Ok(context.store.update(move |change| send_failed(change, &peering, epoch, code, message)).await?)
}

/// Acknowledges an envelope that cannot be used, and fails its epoch.
pub(super) async fn fail_envelope(context: &Context, envelope: &v1::Envelope, message: &str) -> Result<(), StepError> {
    tracing::warn!(peering = envelope.peering, epoch = envelope.epoch, message, "an envelope cannot be used");
    let (envelope, message) = (envelope.clone(), shortened(message));
    let update = context.store.update(move |change| {
        note_opened(change, &envelope);
        send_failed(change, &envelope.peering, envelope.epoch, "envelope-undecryptable".to_owned(), message);
    });
    Ok(update.await?)
}

fn send_failed(change: &mut Change<'_>, peering: &str, epoch: u32, code: String, message: String) {
    let outcome = v1::peering_report::Outcome::Failed(v1::peering_report::Failed { code, message });
    let report = v1::PeeringReport { peering: peering.to_owned(), epoch, outcome: Some(outcome) };
    change.send(ReportKey::PeeringFailed(peering.to_owned(), epoch), Body::PeeringReport(report));
}
