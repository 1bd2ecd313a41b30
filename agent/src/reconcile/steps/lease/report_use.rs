//! Step `report-use`: the donor reports whether work uses a lease.

use std::time::Duration;

use comity_agent_state::record::ReportKey;
use comity_proto::v1::lease_report::{Idle, InUse, Outcome};
use comity_types::LeaseId;

use super::report;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: reports since when a lease has been idle, or that work uses it again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportUse {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
    /// Since when it has been idle, by the monotonic clock; `None` if it is in use.
    pub idle_since: Option<Duration>,
}

impl Kind for ReportUse {
    const NAME: &'static str = "report-use";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, uses, clock, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token, idle_since } = *self;
        let outcome = match idle_since {
            None => Outcome::InUse(InUse {}),
            Some(since) => {
                let idle_for = clock.elapsed().saturating_sub(since);
                Outcome::Idle(Idle { for_ms: u64::try_from(idle_for.as_millis()).unwrap_or(u64::MAX) })
            }
        };
        let report = report::to_message(lease, fencing_token, outcome);
        store.update(move |change| change.send(ReportKey::Use(lease), report)).await?;
        // The plan that follows the report needs no wake-up.
        uses.send_if_modified(|uses| {
            uses.note_reported(lease, idle_since);
            false
        });
        Ok(())
    }
}
