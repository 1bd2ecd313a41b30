//! Step `fail-peering`: an epoch failed; the broker opens the next one, with fresh keys.

use std::borrow::Cow;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Reports that an epoch failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailPeering {
    /// "peer-N".
    pub peering: String,
    /// Epoch of the keys.
    pub epoch: u32,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Kind for FailPeering {
    const NAME: &'static str = "fail-peering";

    fn object(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.peering)
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        epoch::fail(store, &self.peering, self.epoch, self.code, &self.message).await
    }
}
