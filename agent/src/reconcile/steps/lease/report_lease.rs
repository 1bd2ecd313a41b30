//! Step `report-lease`: the donor reports a lease ready again.

use comity_types::LeaseId;

use super::report::send_ready;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: reports again that this side is ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportLease {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
}

impl Kind for ReportLease {
    const NAME: &'static str = "report-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token } = *self;
        let update = store.update(move |change| {
            let namespace = change.records().donors.get(&lease).and_then(|record| record.namespace.clone());
            if let Some(namespace) = namespace {
                send_ready(change, lease, fencing_token, namespace, String::new());
            }
        });
        Ok(update.await?)
    }
}
