//! Step `admit-lease`: the donor admits a lease.

use comity_agent_state::record::{AdmittedCapacity, DonorRecord};
use comity_types::{DataNeed, Delivery, LeaseId};

use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: admits a lease. Runs at once, in order of fencing tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmitLease {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
    /// What it takes, by this agent's own count.
    pub capacity: AdmittedCapacity,
    /// Its peering.
    pub bound: BoundPeering,
    /// Its delivery.
    pub delivery: Delivery,
    /// Its tenant.
    pub tenant: String,
    /// Its GPU class.
    pub class: String,
    /// Datasets that its work reads.
    pub data: Vec<DataNeed>,
    /// The purpose for which it reads them.
    pub purpose: String,
}

impl AdmitLease {
    /// The record of the lease, admitted now.
    pub(crate) fn record(&self, now_ms: u64) -> DonorRecord {
        DonorRecord {
            peer: Some(self.bound.to_record()),
            capacity: self.capacity.clone(),
            admitted_at_ms: now_ms,
            tenant: self.tenant.clone(),
            class: self.class.clone(),
            data: self.data.clone(),
            purpose: self.purpose.clone(),
            ..DonorRecord::new(self.lease, self.fencing_token, self.delivery)
        }
    }
}

impl Kind for AdmitLease {
    const NAME: &'static str = "admit-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, clock, .. }: &Parts) -> Result<(), StepError> {
        let record = self.record(clock.unix_ms());
        let update = store.update(move |change| {
            // A lease taken down in an outage may return: its sequence and admission time continue.
            let before = change.records().donors.get(&record.lease).cloned();
            let (last_sequence, admitted_at_ms) =
                before.map_or((0, record.admitted_at_ms), |before| (before.last_sequence, before.admitted_at_ms));
            change.put_donor(DonorRecord { last_sequence, admitted_at_ms, ..record });
        });
        Ok(update.await?)
    }
}
