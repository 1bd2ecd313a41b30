//! Step `report-checkpointed`: the origin reports that work is saved.

use comity_agent_state::record::ReportKey;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::LeaseId;

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
        let outcome = v1::lease_report::Outcome::Checkpointed(v1::lease_report::Checkpointed {});
        let report = v1::LeaseReport { lease: lease.to_string(), fencing_token, outcome: Some(outcome) };
        Ok(store.update(move |change| change.send(key, Body::LeaseReport(report))).await?)
    }
}
