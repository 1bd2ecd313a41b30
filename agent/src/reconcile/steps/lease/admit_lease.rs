//! Step `admit-lease`: the donor admits a lease.

use comity_agent_state::record::DonorRecord;
use comity_types::{Delivery, LeaseId};

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
    /// Thousandths of GPUs that it takes.
    pub milli: u64,
    /// Its delivery.
    pub delivery: Delivery,
}

impl Kind for AdmitLease {
    const NAME: &'static str = "admit-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, clock, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token, milli, delivery } = self;
        let admitted_at_ms = clock.unix_ms();
        let record =
            DonorRecord { milli: *milli, admitted_at_ms, ..DonorRecord::new(*lease, *fencing_token, *delivery) };
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
