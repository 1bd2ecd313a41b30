//! Forgets a lease: the last part of `remove-lease`.

use comity_types::LeaseId;

use super::remove_lease::RemoveLease;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Forgets the records of a lease that was taken down and acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgetLease {
    /// The lease.
    pub lease: LeaseId,
}

impl Kind for ForgetLease {
    const NAME: &'static str = RemoveLease::NAME;

    fn names() -> Vec<&'static str> {
        Vec::new()
    }

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let lease = self.lease;
        Ok(store.update(move |change| change.drop_lease(lease)).await?)
    }
}
