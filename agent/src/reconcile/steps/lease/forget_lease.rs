//! Forgets a lease: the last part of `remove-lease`.

use std::borrow::Cow;

use super::remove_lease::RemoveLease;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Forgets the records of a lease that was taken down and acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgetLease {
    /// "lease-N".
    pub lease: String,
}

impl Kind for ForgetLease {
    const NAME: &'static str = RemoveLease::NAME;

    fn names() -> Vec<&'static str> {
        Vec::new()
    }

    fn object(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.lease)
    }

    async fn run(&self, Parts { store, .. }: &Parts) -> Result<(), StepError> {
        let lease = self.lease.clone();
        Ok(store.update(move |change| change.drop_lease(&lease)).await?)
    }
}
