//! Handles the broker's acknowledgement of a message: committed, or refused for good.

use std::time::Duration;

use comity_agent_state::record::{LiqoRecord, ReportKey};
use comity_agent_state::store::Change;
use comity_proto::v1;

/// How long an acknowledged report counts as on its way: until the desired state shows it.
const SETTLING: Duration = Duration::from_secs(3);
/// How long an acknowledged end counts as known, while the broker still says that the object ends. The other side may
/// take that long. Afterwards the end is reported again: whoever acknowledged it may not have written it down.
const END_KNOWN: Duration = Duration::from_secs(300);

/// How long a report may wait for its acknowledgement on one stream. A group without a leader, and one that slows down
/// a cluster's reports, needs less.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(120);

/// Waits for the acknowledgement of the oldest report that a stream carried: a broker that falls silent must not hold
/// an agent for as long as its connection stands.
#[derive(Default)]
pub(super) struct AckWait {
    oldest: Option<(u64, Duration)>,
}

impl AckWait {
    /// Whether the broker has kept the oldest report waiting for too long, at a time of the monotonic clock.
    pub(super) fn is_over(&mut self, oldest: Option<u64>, now: Duration) -> bool {
        self.oldest = match (oldest, self.oldest) {
            (Some(id), Some((known, since))) if id == known => Some((known, since)),
            (oldest, _) => oldest.map(|id| (id, now)),
        };
        self.oldest.is_some_and(|(_, since)| now.saturating_sub(since) > ACKNOWLEDGED_WITHIN)
    }
}

/// Whether a report says that nothing is left of a lease or peering here.
pub(super) fn is_end(key: &ReportKey) -> bool {
    matches!(key, ReportKey::Clean(_) | ReportKey::Closed(_))
}

/// How long an acknowledged report needs no repetition.
pub(super) fn known_for(key: &ReportKey, ack: &v1::Ack) -> Duration {
    if is_end(key) && (ack.error.is_none() || is_unknown(ack)) { END_KNOWN } else { SETTLING }
}

/// The end whose report no longer counts, once this failure is known: the broker goes on to end the object.
pub(super) fn voided_by(failure: &ReportKey) -> Option<ReportKey> {
    match failure {
        ReportKey::LeaseFailed(lease) => Some(ReportKey::Clean(*lease)),
        ReportKey::PeeringFailed(peering, _) => Some(ReportKey::Closed(*peering)),
        _ => None,
    }
}

/// Removes the message from the outbox and updates the records. Returns its key.
pub(super) fn settle(change: &mut Change<'_>, ack: &v1::Ack) -> Option<ReportKey> {
    let outgoing = change.unsend(ack.message_id)?;
    let refused = ack.error.is_some();
    match &outgoing.key {
        ReportKey::Psk(peering, epoch) | ReportKey::Proof(peering, epoch) => {
            change.change_peering(*peering, *epoch, |record| record.sealed_accepted = !refused);
        }
        // The broker dropped it with its epoch, or was not ready for it: it is sealed again later.
        ReportKey::Credential(lease) if refused => {
            change.change_donor(*lease, |record| record.sealed = None);
        }
        ReportKey::Liqo(peering) => {
            let record = change.records().liqo.get(peering).map(|record| LiqoRecord::clone(record));
            if let Some(mut record) = record
                && let Some(sealed) = &mut record.sealed
            {
                sealed.refused = refused;
                change.put_liqo(record);
            }
        }
        ReportKey::LiqoNetwork(peering) => {
            let record = change.records().liqo.get(peering).map(|record| LiqoRecord::clone(record));
            if let Some(mut record) = record
                && let Some(sealed) = record.network.as_mut().and_then(|network| network.sealed.as_mut())
            {
                sealed.refused = refused;
                change.put_liqo(record);
            }
        }
        ReportKey::Clean(lease) if !refused || is_unknown(ack) => {
            change.change_donor(*lease, |record| record.clean_acked = true);
            change.change_origin(*lease, |record| record.clean_acked = true);
        }
        // The broker ends the lease now and waits for its end here, also if it was restored and once knew of that end.
        ReportKey::LeaseFailed(lease) => {
            change.change_donor(*lease, |record| record.clean_acked = false);
            change.change_origin(*lease, |record| record.clean_acked = false);
        }
        ReportKey::Closed(peering) if !refused || is_unknown(ack) => {
            if let Some(v1::agent_message::Body::PeeringReport(report)) = &outgoing.message.body {
                change.put_closed(*peering, report.epoch);
            }
        }
        ReportKey::Credential(_)
        | ReportKey::Clean(_)
        | ReportKey::Closed(_)
        | ReportKey::Keys(..)
        | ReportKey::Authenticated(..)
        | ReportKey::Established(..)
        | ReportKey::PeeringFailed(..)
        | ReportKey::Ready(_)
        | ReportKey::Checkpointed(_)
        | ReportKey::Use(_)
        | ReportKey::EnvelopeAck(..) => {}
    }
    Some(outgoing.key.clone())
}

/// The broker no longer knows the message's subject: counts as done.
fn is_unknown(ack: &v1::Ack) -> bool {
    ack.error.as_ref().is_some_and(|error| error.code == "not-found")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_state::record::{DonorRecord, OriginRecord};
    use comity_agent_state::store::Store;
    use comity_proto::v1::agent_message::Body;
    use comity_types::{Delivery, LeaseId};

    use super::*;

    fn ack(message_id: u64, code: Option<&str>) -> v1::Ack {
        let error = code.map(|code| v1::ErrorDetail { code: code.to_owned(), ..v1::ErrorDetail::default() });
        v1::Ack { message_id, error }
    }

    #[tokio::test]
    async fn clean_counts_once_committed_or_unknown_and_not_when_refused() {
        for (code, counts) in [(None, true), (Some("not-found"), true), (Some("wrong-state"), false)] {
            let home = tempfile::tempdir().unwrap();
            let store = Store::open(home.path()).unwrap();
            store
                .update(|change| {
                    change.put_origin(OriginRecord::new(LeaseId(1), 1, Delivery::Namespace));
                    change.send(ReportKey::Clean(LeaseId(1)), Body::LeaseReport(v1::LeaseReport::default()));
                })
                .await
                .unwrap();
            let id = *store.records().outbox.keys().next().unwrap();
            let key = store.update(move |change| settle(change, &ack(id, code))).await.unwrap();
            assert_eq!(key, Some(ReportKey::Clean(LeaseId(1))));
            assert_eq!(store.records().origins[&LeaseId(1)].clean_acked, counts, "{code:?}");
            assert!(store.records().outbox.is_empty());
            let again = store.update(move |change| settle(change, &ack(id, code))).await.unwrap();
            assert_eq!(again, None, "a second acknowledgement finds nothing");
        }
    }

    #[test]
    fn broker_holds_a_stream_and_acknowledges_nothing() {
        let second = Duration::from_secs(1);
        let mut wait = AckWait::default();
        assert!(!wait.is_over(None, second * 1_000), "nothing was reported");
        assert!(!wait.is_over(Some(7), second * 1_000) && !wait.is_over(Some(7), second * 1_120));
        assert!(!wait.is_over(Some(8), second * 1_121), "slow, and not silent");
        assert!(wait.is_over(Some(8), second * 1_242));
        assert!(!wait.is_over(None, second * 1_243));
    }

    /// Acknowledged by a broker that forgot it, or was restored, an end is reported again.
    #[test]
    fn an_end_is_known_for_longer_than_other_reports_and_not_for_ever() {
        let (clean, ready) = (ReportKey::Clean(LeaseId(1)), ReportKey::Ready(LeaseId(1)));
        for (key, code, known) in [
            (&clean, None, END_KNOWN),
            (&clean, Some("not-found"), END_KNOWN),
            (&clean, Some("wrong-state"), SETTLING),
            (&ready, None, SETTLING),
        ] {
            assert_eq!(known_for(key, &ack(1, code)), known, "{key:?} {code:?}");
        }
        assert_eq!(voided_by(&ReportKey::LeaseFailed(LeaseId(1))), Some(clean));
        assert_eq!(voided_by(&ready), None);
    }

    #[tokio::test]
    async fn after_a_failure_the_end_is_reported_again() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        store
            .update(|change| {
                let ended = DonorRecord::new(LeaseId(1), 1, Delivery::Namespace);
                change.put_donor(DonorRecord { removed: true, ended: true, clean_acked: true, ..ended });
                change.send(ReportKey::LeaseFailed(LeaseId(1)), Body::LeaseReport(v1::LeaseReport::default()));
            })
            .await
            .unwrap();
        let id = *store.records().outbox.keys().next().unwrap();
        store.update(move |change| settle(change, &ack(id, None))).await.unwrap();
        assert!(!store.records().donors[&LeaseId(1)].clean_acked);
    }
}
