//! Step `report-checkpointed`: the origin reports that work is saved.

use comity_agent_state::record::ReportKey;
use comity_proto::v1::lease_report::{Checkpointed, Outcome};
use comity_types::LeaseId;

use super::report;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: reports that the work on a lease under reclaim is saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportCheckpointed {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
}

impl Kind for ReportCheckpointed {
    const NAME: &'static str = "report-checkpointed";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token } = *self;
        let key = ReportKey::Checkpointed(lease);
        let report = report::to_message(lease, fencing_token, Outcome::Checkpointed(Checkpointed {}));
        Ok(store.update(move |change| change.send(key, report)).await?)
    }
}
