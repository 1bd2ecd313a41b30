//! Step `reopen-lease`: the donor marks a lease's nodes again, after a Node object was deleted and made again.

use comity_agent_model::lease::Lease;
use comity_types::Delivery;

use super::terms::donor_lease;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: sets the lease's label or resources again on those of its nodes that are there.
#[derive(Clone, Debug, PartialEq)]
pub struct ReopenLease {
    /// The lease.
    pub lease: Box<Lease>,
}

impl Kind for ReopenLease {
    const NAME: &'static str = "reopen-lease";

    fn object(&self) -> String {
        self.lease.id.to_string()
    }

    fn traceparent(&self) -> &str {
        &self.lease.traceparent
    }

    async fn run(&self, Parts { deliveries, .. }: &Parts) -> Result<(), StepError> {
        let wanted = donor_lease(&self.lease, self.lease.expires_at_ms)?;
        match self.lease.delivery {
            Delivery::Namespace => deliveries.donor.reopen(&wanted).await?,
            Delivery::VirtualNode => deliveries.virtual_nodes()?.donor.reopen(&wanted).await?,
        }
        Ok(())
    }
}
