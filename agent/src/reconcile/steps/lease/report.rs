//! Reports about one side of a lease.

use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::Lease;
use comity_agent_state::record::ReportKey;
use comity_agent_state::store::{Change, Store};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::lease_report::{Failed, Outcome, Ready};
use comity_types::LeaseId;

use crate::reconcile::steps::epoch::shortened;
use crate::reconcile::steps::error::StepError;

/// The message that reports an outcome of this side.
pub(super) fn to_message(lease: LeaseId, fencing_token: u64, outcome: Outcome) -> Body {
    Body::LeaseReport(v1::LeaseReport { lease: lease.to_string(), fencing_token, outcome: Some(outcome) })
}

/// Reports that this side failed.
pub(super) async fn fail(
    store: &Store,
    lease: LeaseId,
    fencing_token: u64,
    code: &str,
    message: &str,
) -> Result<(), StepError> {
    tracing::warn!(%lease, code, message, "this side of the lease failed");
    let highest_fencing_token = store.records().fence;
    let failed = Outcome::Failed(Failed { code: code.to_owned(), message: shortened(message), highest_fencing_token });
    let report = to_message(lease, fencing_token, failed);
    Ok(store.update(move |change| change.send(ReportKey::LeaseFailed(lease), report)).await?)
}

/// The result of work; `None` if it failed for good, which is then reported.
pub(super) async fn or_fail<T>(
    store: &Store,
    lease: &Lease,
    result: Result<T, StepError>,
) -> Result<Option<T>, StepError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            fail(store, lease.id, lease.fencing_token, code, &message).await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reports that this side is ready.
pub(super) fn send_ready(
    change: &mut Change<'_>,
    lease: LeaseId,
    fencing_token: u64,
    namespace: String,
    secret_name: String,
) {
    let ready = Outcome::Ready(Ready { namespace, secret_name });
    change.send(ReportKey::Ready(lease), to_message(lease, fencing_token, ready));
}
