//! Step `fail-peering`: an epoch failed; the broker opens the next one, with fresh keys.

use comity_types::PeeringId;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Reports that an epoch failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailPeering {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Kind for FailPeering {
    const NAME: &'static str = "fail-peering";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        epoch::fail(store, self.peering, self.epoch, self.code, &self.message).await
    }
}
