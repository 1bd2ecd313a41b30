//! Shared by the steps of one epoch of a peering: its record, and reports about it.

use std::sync::Arc;

use comity_agent_liqo::LiqoPeer;
use comity_agent_model::envelope::EnvelopeKey;
use comity_agent_state::record::{PeeringRecord, RemoteKeys, ReportKey};
use comity_agent_state::store::{Change, Store};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::peering_report::{Failed, Outcome};
use comity_types::{PeeringId, printable_line};

use super::error::StepError;
use crate::keys::continuity::ContinuityError;
use crate::reconcile::bound_peering::BoundEpoch;

/// Bytes of a message for people.
const MAX_REPORT_MESSAGE_BYTES: usize = 512;

/// This side's record of an epoch.
pub(super) fn record(store: &Store, peering: PeeringId, epoch: u32) -> Result<PeeringRecord, StepError> {
    let records = store.records();
    let record = records.peering(peering, epoch).map(Arc::as_ref).cloned();
    record.ok_or(StepError::Gone("the epoch's record"))
}

/// The other side's keys, if they are still those to which a lease is bound.
pub(super) fn bound_remote<'r>(record: &'r PeeringRecord, bound: &BoundEpoch) -> Result<&'r RemoteKeys, StepError> {
    let remote = record.remote.as_ref().filter(|remote| remote.identity_key == bound.identity_key());
    remote.ok_or(StepError::Gone("the other side's keys"))
}

/// The other side of a peering, as Liqo knows it.
pub(super) fn liqo_peer(store: &Store, peering: PeeringId) -> Result<LiqoPeer, StepError> {
    let records = store.records();
    records.liqo.get(&peering).map(|record| record.peer()).ok_or(StepError::Gone("the key exchange of Liqo"))
}

/// Reports that an epoch failed; the broker opens the next one, with fresh keys.
pub(super) async fn fail(
    store: &Store,
    peering: PeeringId,
    epoch: u32,
    code: &str,
    message: &str,
) -> Result<(), StepError> {
    tracing::warn!(%peering, epoch, code, message, "this epoch of the peering failed");
    let (code, message) = (code.to_owned(), shortened(message));
    Ok(store.update(move |change| send_failed(change, peering, epoch, code, message)).await?)
}

/// Reports that the other side's identity key is not trusted. Loud, because somebody may impersonate the cluster.
pub(super) async fn fail_continuity(
    store: &Store,
    peering: PeeringId,
    epoch: u32,
    error: &ContinuityError,
) -> Result<(), StepError> {
    tracing::error!(%peering, epoch, %error, "the other cluster's identity key is not trusted");
    match error {
        ContinuityError::Changed { .. } | ContinuityError::OtherInstitution { .. } => {
            fail(store, peering, epoch, "identity-changed", &error.to_string()).await
        }
        ContinuityError::Full { .. } => fail(store, peering, epoch, "too-many-peers", &error.to_string()).await,
    }
}

/// Fails the epoch of an envelope that cannot be used. It counts as neither opened nor read: a forged one must not take
/// the place of the true one, which has the same key or a lower sequence.
pub(super) async fn fail_envelope(store: &Store, key: &EnvelopeKey, message: &str) -> Result<(), StepError> {
    let EnvelopeKey { peering, epoch, .. } = *key;
    fail(store, peering, epoch, "envelope-undecryptable", message).await
}

fn send_failed(change: &mut Change<'_>, peering: PeeringId, epoch: u32, code: String, message: String) {
    let report = to_message(peering, epoch, Outcome::Failed(Failed { code, message }));
    change.send(ReportKey::PeeringFailed(peering, epoch), report);
}

/// The message that reports an outcome of an epoch.
pub(super) fn to_message(peering: PeeringId, epoch: u32, outcome: Outcome) -> Body {
    Body::PeeringReport(v1::PeeringReport { peering: peering.to_string(), epoch, outcome: Some(outcome) })
}

/// Truncates a message to the broker's limit.
pub(super) fn shortened(message: &str) -> String {
    let message = printable_line(message);
    let mut end = message.len().min(MAX_REPORT_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_state::record::SecretKey;
    use comity_types::Side;

    use super::*;

    /// With the highest sequence it would keep out every later envelope of its kind, and an acknowledgement would make
    /// an honest broker delete the true one, which has the same key.
    #[tokio::test]
    async fn broker_forges_an_envelope_of_the_highest_sequence() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let peering = PeeringId(1);
        let bundle = v1::KeyBundle { epoch: 3, ..v1::KeyBundle::default() };
        let [wireguard, hpke] = [1, 2].map(|byte| SecretKey::new([byte; 32]));
        let record = PeeringRecord::new(peering, &bundle, Side::Origin, wireguard, hpke);
        store.update(move |change| change.put_peering(record)).await.unwrap();
        let of_lease = |sequence| EnvelopeKey {
            peering,
            epoch: 3,
            lease: Some(comity_types::LeaseId(7)),
            step: "credential".to_owned(),
            sequence,
        };
        fail_envelope(&store, &of_lease(u64::MAX), "it was forged").await.unwrap();
        let records = store.records();
        assert!(!records.peering(peering, 3).unwrap().has_opened(&of_lease(2)), "the true one can still be opened");
        let reports: Vec<&ReportKey> = records.outbox.values().map(|outgoing| &outgoing.key).collect();
        assert_eq!(reports, [&ReportKey::PeeringFailed(peering, 3)]);
    }
}
