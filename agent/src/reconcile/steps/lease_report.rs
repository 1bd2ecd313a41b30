//! Steps `refuse-lease`, `report-lease` and `report-checkpointed`: reports about one side of a lease.

use comity_agent_state::record::ReportKey;
use comity_agent_state::store::Change;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, shortened};

pub(super) async fn fail(
    context: &Context,
    lease: &str,
    fencing_token: u64,
    code: &str,
    message: &str,
) -> Result<(), StepError> {
    tracing::warn!(lease, code, message, "this side cannot go on with the lease");
    let failed = v1::lease_report::Failed { code: code.to_owned(), message: shortened(message) };
    let report = v1::LeaseReport {
        lease: lease.to_owned(),
        fencing_token,
        outcome: Some(v1::lease_report::Outcome::Failed(failed)),
    };
    let key = ReportKey::LeaseFailed(lease.to_owned());
    Ok(context.store.update(move |change| change.send(key, Body::LeaseReport(report))).await?)
}

pub(super) async fn donor_ready(context: &Context, lease: &str, fencing_token: u64) -> Result<(), StepError> {
    let lease = lease.to_owned();
    let update = context.store.update(move |change| {
        let namespace = change.records().donors.get(&lease).and_then(|record| record.namespace.clone());
        if let Some(namespace) = namespace {
            send_ready(change, &lease, fencing_token, namespace, String::new());
        }
    });
    Ok(update.await?)
}

pub(super) async fn checkpointed(context: &Context, lease: &str, fencing_token: u64) -> Result<(), StepError> {
    let report = v1::LeaseReport {
        lease: lease.to_owned(),
        fencing_token,
        outcome: Some(v1::lease_report::Outcome::Checkpointed(v1::lease_report::Checkpointed {})),
    };
    let key = ReportKey::Checkpointed(lease.to_owned());
    Ok(context.store.update(move |change| change.send(key, Body::LeaseReport(report))).await?)
}

pub(super) fn send_ready(
    change: &mut Change<'_>,
    lease: &str,
    fencing_token: u64,
    namespace: String,
    secret_name: String,
) {
    let ready = v1::lease_report::Ready { namespace, secret_name };
    let report = v1::LeaseReport {
        lease: lease.to_owned(),
        fencing_token,
        outcome: Some(v1::lease_report::Outcome::Ready(ready)),
    };
    change.send(ReportKey::Ready(lease.to_owned()), Body::LeaseReport(report));
}
