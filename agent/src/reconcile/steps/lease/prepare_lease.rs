//! Step `prepare-lease`: the donor makes a lease's namespace, or grants its virtual node.

use std::collections::BTreeSet;
use std::time::Duration;

use comity_agent_delivery::LentNode;
use comity_agent_model::lease::Lease;
use comity_agent_state::record::Records;
use comity_agent_state::store::{Change, Store};
use comity_types::{Delivery, LeaseId};

use super::report;
use super::terms::donor_lease;
use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::parts::{Deliveries, Parts};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: makes the lease's namespace with its contents, or grants its virtual node.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareLease {
    /// The lease.
    pub lease: Box<Lease>,
    /// Its peering.
    pub bound: BoundPeering,
    /// When it ends at the latest, in milliseconds since 1970.
    pub ends_at_ms: u64,
}

impl Kind for PrepareLease {
    const NAME: &'static str = "prepare-lease";

    fn object(&self) -> String {
        self.lease.id.to_string()
    }

    fn traceparent(&self) -> &str {
        &self.lease.traceparent
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&self, Parts { store, deliveries, .. }: &Parts) -> Result<(), StepError> {
        let prepared = self.prepare(store, deliveries).await;
        let Some((namespace, lent)) = report::or_fail(store, &self.lease, prepared).await? else { return Ok(()) };
        let id = self.lease.id;
        let nodes_to_clean = self.nodes_to_clean(deliveries);
        let note = move |change: &mut Change<'_>| {
            // Chosen in the transaction: leases are prepared concurrently, and no two may share a slice.
            let slice = lent.as_ref().map(|lent| choose_slice(change.records(), id, &lent.idle));
            change.change_donor(id, |record| {
                record.namespace = Some(namespace);
                record.grant = lent.map(|lent| lent.grant);
                record.slice = slice;
                record.nodes_to_clean = nodes_to_clean;
            });
        };
        Ok(store.update(note).await?)
    }
}

impl PrepareLease {
    fn nodes_to_clean(&self, deliveries: &Deliveries) -> BTreeSet<String> {
        let nodes = self.lease.placement.iter().flat_map(|placement| &placement.nodes);
        nodes.filter(|_| deliveries.cleaner.is_some()).map(|node| node.node.clone()).collect()
    }

    /// The namespace on this cluster, and a virtual node's grant, which takes effect when it is stored.
    async fn prepare(&self, store: &Store, deliveries: &Deliveries) -> Result<(String, Option<LentNode>), StepError> {
        let wanted = donor_lease(&self.lease, self.ends_at_ms)?;
        if let Some(cleaner) = &deliveries.cleaner {
            cleaner.template().await?;
        }
        if wanted.placement.has_mig_starts() {
            deliveries.wait_until_cut(self.lease.id).await?;
        }
        match self.lease.delivery {
            Delivery::Namespace => Ok((deliveries.donor.prepare(&wanted).await?.namespace, None)),
            Delivery::VirtualNode => {
                let peer = epoch::liqo_peer(store, self.bound.peering())?;
                let lent = deliveries.virtual_nodes()?.donor.prepare(&peer, &wanted).await?;
                Ok((peer.tenant_namespace(), Some(lent)))
            }
        }
    }
}

/// The ResourceSlice for a lease: an idle one that no other lease uses, else one of its own.
fn choose_slice(records: &Records, lease: LeaseId, idle: &[String]) -> String {
    let in_use = |slice: &str| {
        records.donors.values().any(|record| record.lease != lease && !record.removed && record.slice() == slice)
    };
    if let Some(before) = records.donors.get(&lease).and_then(|record| record.slice.clone()) {
        return before;
    }
    idle.iter().find(|slice| !in_use(slice)).cloned().unwrap_or_else(|| lease.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_agent_state::record::DonorRecord;

    use super::*;

    #[test]
    fn no_two_leases_have_one_slice() {
        let record = |lease: u64, slice: Option<&str>, removed| {
            let record = DonorRecord::new(LeaseId(lease), 1, Delivery::VirtualNode);
            (LeaseId(lease), Arc::new(DonorRecord { slice: slice.map(str::to_owned), removed, ..record }))
        };
        let donors =
            [record(1, None, true), record(2, None, false), record(3, Some("lease-1"), false), record(4, None, false)];
        let records = Records { donors: donors.into(), ..Records::default() };
        let idle = ["lease-1", "lease-2", "lease-0"].map(str::to_owned);
        assert_eq!(choose_slice(&records, LeaseId(4), &idle), "lease-0", "the others are in use");
        assert_eq!(choose_slice(&records, LeaseId(4), &idle[..2]), "lease-4");
        assert_eq!(choose_slice(&records, LeaseId(3), &idle), "lease-1", "what was chosen before stays");
    }
}
