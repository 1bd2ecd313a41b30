//! Step `admit-lease`: the donor admits a lease.

use comity_agent_state::record::{AdmittedCapacity, DonorRecord};
use comity_types::{Delivery, LeaseId};

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
}

impl Kind for AdmitLease {
    const NAME: &'static str = "admit-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, clock, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token, capacity, bound, delivery } = self;
        let record = DonorRecord {
            peer: Some(bound.to_record()),
            capacity: capacity.clone(),
            admitted_at_ms: clock.unix_ms(),
            ..DonorRecord::new(*lease, *fencing_token, *delivery)
        };
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
