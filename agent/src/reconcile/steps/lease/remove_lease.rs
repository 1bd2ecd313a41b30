//! Step `remove-lease`: removes everything of the lease on this side, and only then reports it to the broker.

use std::time::Duration;

use comity_agent_state::record::{DonorRecord, OriginRecord, ReportKey};
use comity_agent_state::store::{Change, Store};
use comity_proto::v1::lease_report::{Clean, Outcome};
use comity_types::{Delivery, LeaseId, Side};

use super::report;
use crate::reconcile::parts::{Deliveries, Parts};
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Takes down this side of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemoveLease {
    /// The lease.
    pub lease: LeaseId,
    /// The side; both if `None`.
    pub side: Option<Side>,
    /// Fencing token under which it is reported; not reported if `None`.
    pub report: Option<u64>,
}

impl Kind for RemoveLease {
    const NAME: &'static str = "remove-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    fn deadline(&self) -> Duration {
        // A namespace may take long to go.
        Duration::from_secs(300)
    }

    async fn run(&self, Parts { store, deliveries, connections, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, side, report } = *self;
        drop(connections.remove(lease));
        if side != Some(Side::Origin) {
            remove_lent(store, deliveries, lease).await?;
            clean_nodes(store, deliveries, lease).await?;
        }
        if side != Some(Side::Donor) {
            remove_borrowed(store, deliveries, lease).await?;
        }
        let Some((side, fencing_token)) = side.zip(report) else {
            return Ok(store.update(move |change| mark_removed(change, lease, side, false)).await?);
        };
        let update = store.update(move |change| {
            ensure_record(change, lease, side, fencing_token);
            mark_removed(change, lease, Some(side), true);
            let report = report::to_message(lease, fencing_token, Outcome::Clean(Clean {}));
            change.send(ReportKey::Clean(lease), report);
        });
        Ok(update.await?)
    }
}

/// Removes by the lease's delivery, or by every delivery if there is no record.
async fn remove_lent(store: &Store, deliveries: &Deliveries, lease: LeaseId) -> Result<(), StepError> {
    let delivery = store.records().donors.get(&lease).map(|record| record.delivery);
    if delivery != Some(Delivery::VirtualNode) {
        deliveries.donor.remove(lease).await?;
    }
    if delivery == Some(Delivery::Namespace) || delivery.is_none() && deliveries.virtual_nodes.is_none() {
        return Ok(());
    }
    // The grant ends first: nothing new starts, and running pods are drained.
    store.update(move |change| change.change_donor(lease, |record| record.grant = None)).await?;
    let records = store.records();
    let record = records.donors.get(&lease);
    let slice = record.map_or_else(|| lease.to_string(), |record| record.slice());
    let namespace = record.and_then(|record| record.namespace.as_deref());
    Ok(deliveries.virtual_nodes()?.donor.remove(lease, &slice, namespace).await?)
}

/// Cleans the nodes that the lease had, if the donor asks for it.
async fn clean_nodes(store: &Store, deliveries: &Deliveries, lease: LeaseId) -> Result<(), StepError> {
    let Some(cleaner) = &deliveries.cleaner else { return Ok(()) };
    let nodes = store.records().donors.get(&lease).map(|record| record.nodes_to_clean.clone());
    Ok(cleaner.clean(lease, &nodes.unwrap_or_default()).await?)
}

async fn remove_borrowed(store: &Store, deliveries: &Deliveries, lease: LeaseId) -> Result<(), StepError> {
    let delivery = store.records().origins.get(&lease).map(|record| record.delivery);
    if delivery != Some(Delivery::VirtualNode) {
        deliveries.origin.remove(lease).await?;
    }
    if delivery == Some(Delivery::Namespace) || delivery.is_none() && deliveries.virtual_nodes.is_none() {
        return Ok(());
    }
    Ok(deliveries.virtual_nodes()?.origin.remove(lease).await?)
}

/// Adds a missing record, so that the acknowledgement finds one and the step is not planned again.
fn ensure_record(change: &mut Change<'_>, lease: LeaseId, side: Side, fencing_token: u64) {
    match side {
        Side::Donor if !change.records().donors.contains_key(&lease) => {
            let record = DonorRecord::new(lease, fencing_token, Delivery::default());
            change.put_donor(DonorRecord { removed: true, ..record });
        }
        Side::Origin if !change.records().origins.contains_key(&lease) => {
            change.put_origin(OriginRecord::new(lease, fencing_token, Delivery::default()));
        }
        Side::Donor | Side::Origin => {}
    }
}

/// Marks a side as removed and keeps its record, so that a lease that has not ended can return after an outage; without
/// a side the lease is forgotten.
fn mark_removed(change: &mut Change<'_>, lease: LeaseId, side: Option<Side>, ended: bool) {
    if side.is_none() {
        change.drop_lease(lease);
        return;
    }
    change.change_donor(lease, |record| {
        record.namespace = None;
        record.grant = None;
        record.slice = None;
        record.nodes_to_clean.clear();
        record.sealed = None;
        record.removed = true;
        record.ended |= ended;
    });
    change.change_origin(lease, |record| {
        record.credential = None;
        record.node = None;
        record.removed = true;
    });
}
