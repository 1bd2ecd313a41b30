//! Step `refuse-lease`: reports that this side cannot serve a lease.

use comity_types::LeaseId;

use super::report;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;
use crate::signed_policy::lease_permit::SIGNED_POLICY;

/// Codes of refusals that no broker causes while it works as it should: it lost state, or somebody else controls it.
const CONTRADICTIONS: [&str; 8] = [
    "peering-mismatch",
    "lease-rebound",
    "lease-ended",
    "identity-changed",
    "placement-disagrees",
    "token-too-high",
    "token-too-low",
    SIGNED_POLICY,
];

/// Reports that this side cannot or will not serve a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct RefuseLease {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Kind for RefuseLease {
    const NAME: &'static str = "refuse-lease";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        if CONTRADICTIONS.contains(&self.code) {
            let Self { lease, code, message, .. } = self;
            tracing::error!(%lease, code, message, "a broker contradicts what this agent knows");
        }
        report::fail(store, self.lease, self.fencing_token, self.code, &self.message).await
    }
}
