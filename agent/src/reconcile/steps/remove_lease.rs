//! Step `remove-lease`: removes everything of the lease on this side, and only then reports it to the broker.

use comity_agent_model::delivery_kind::DeliveryKind;
use comity_agent_model::side::Side;
use comity_agent_state::record::{DonorRecord, OriginRecord, ReportKey};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, liqo};

pub(super) async fn run(
    context: &Context,
    lease: &str,
    side: Option<Side>,
    report: Option<u64>,
) -> Result<(), StepError> {
    drop(context.running().connected.remove(lease));
    if side != Some(Side::Origin) {
        remove_lent(context, lease).await?;
    }
    if side != Some(Side::Donor) {
        remove_borrowed(context, lease).await?;
    }
    let lease = lease.to_owned();
    let Some((side, fencing_token)) = side.zip(report) else {
        return Ok(context.store.update(move |change| mark_removed(change, &lease, side)).await?);
    };
    let update = context.store.update(move |change| {
        ensure_record(change, &lease, side, fencing_token);
        mark_removed(change, &lease, Some(side));
        let outcome = v1::lease_report::Outcome::Clean(v1::lease_report::Clean {});
        let report = v1::LeaseReport { lease: lease.clone(), fencing_token, outcome: Some(outcome) };
        change.send(ReportKey::Clean(lease), Body::LeaseReport(report));
    });
    Ok(update.await?)
}

/// Removes by the lease's delivery, or by every delivery if there is no record.
async fn remove_lent(context: &Context, lease: &str) -> Result<(), StepError> {
    let delivery = context.store.records().donors.get(lease).map(|record| record.delivery);
    if delivery != Some(DeliveryKind::VirtualNode) {
        context.donor.remove(lease).await?;
    }
    if delivery == Some(DeliveryKind::Namespace) || delivery.is_none() && context.virtual_nodes.is_none() {
        return Ok(());
    }
    // The grant ends first: nothing new starts, and running pods are drained.
    let id = lease.to_owned();
    context.store.update(move |change| change.change_donor(&id, |record| record.grant = None)).await?;
    let records = context.store.records();
    let record = records.donors.get(lease);
    let slice = record.map_or(lease, |record| record.slice());
    let namespace = record.and_then(|record| record.namespace.as_deref());
    Ok(liqo::virtual_nodes(context)?.donor.remove(lease, slice, namespace).await?)
}

async fn remove_borrowed(context: &Context, lease: &str) -> Result<(), StepError> {
    let delivery = context.store.records().origins.get(lease).map(|record| record.delivery);
    if delivery != Some(DeliveryKind::VirtualNode) {
        context.origin.remove(lease).await?;
    }
    if delivery == Some(DeliveryKind::Namespace) || delivery.is_none() && context.virtual_nodes.is_none() {
        return Ok(());
    }
    Ok(liqo::virtual_nodes(context)?.origin.remove(lease).await?)
}

/// Adds a missing record, so that the acknowledgement finds one and the step is not planned again.
fn ensure_record(change: &mut comity_agent_state::store::Change<'_>, lease: &str, side: Side, fencing_token: u64) {
    match side {
        Side::Donor if !change.records().donors.contains_key(lease) => {
            let record = DonorRecord::new(lease, fencing_token, DeliveryKind::default());
            change.put_donor(DonorRecord { removed: true, ..record });
        }
        Side::Origin if !change.records().origins.contains_key(lease) => {
            change.put_origin(OriginRecord::new(lease, fencing_token, DeliveryKind::default()));
        }
        Side::Donor | Side::Origin => {}
    }
}

/// Marks a side as removed and keeps its record, so that a lease can return after an outage; without a side the lease
/// is forgotten.
fn mark_removed(change: &mut comity_agent_state::store::Change<'_>, lease: &str, side: Option<Side>) {
    if side.is_none() {
        change.drop_lease(lease);
        return;
    }
    change.change_donor(lease, |record| {
        record.namespace = None;
        record.grant = None;
        record.slice = None;
        record.sealed = None;
        record.removed = true;
    });
    change.change_origin(lease, |record| {
        record.credential = None;
        record.node = None;
        record.removed = true;
    });
}

pub(super) async fn forget(context: &Context, lease: &str) -> Result<(), StepError> {
    let lease = lease.to_owned();
    Ok(context.store.update(move |change| change.drop_lease(&lease)).await?)
}
