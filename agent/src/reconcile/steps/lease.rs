//! Steps of one side of a lease.

mod accept_credential;
mod admit_lease;
mod forget_lease;
mod open_credential;
mod prepare_lease;
mod probe;
mod refuse_lease;
mod remove_lease;
mod reopen_lease;
mod report;
mod report_checkpointed;
mod report_lease;
mod seal_credential;
mod terms;

use std::time::Duration;

pub use accept_credential::AcceptCredential;
pub use admit_lease::AdmitLease;
pub use forget_lease::ForgetLease;
pub use open_credential::OpenCredential;
pub use prepare_lease::PrepareLease;
pub use probe::Probe;
pub use refuse_lease::RefuseLease;
pub use remove_lease::RemoveLease;
pub use reopen_lease::ReopenLease;
pub use report_checkpointed::ReportCheckpointed;
pub use report_lease::ReportLease;
pub use seal_credential::SealCredential;

use super::Step;
use super::error::StepError;
use super::kind::{Kind, kinds};
use crate::reconcile::parts::Parts;

kinds! {
    /// A step of one side of a lease.
    LeaseStep in Step {
        /// Donor: admits the lease.
        AdmitLease(AdmitLease),
        /// Refuses it.
        RefuseLease(RefuseLease),
        /// Donor: makes its namespace, or grants its virtual node.
        PrepareLease(PrepareLease),
        /// Donor: marks its nodes again.
        ReopenLease(ReopenLease),
        /// Donor: seals its credential.
        SealCredential(SealCredential),
        /// Reports it ready again.
        ReportLease(ReportLease),
        /// Origin: reports its work saved.
        ReportCheckpointed(ReportCheckpointed),
        /// Origin: opens its credential.
        OpenCredential(OpenCredential),
        /// Origin: connects it.
        AcceptCredential(AcceptCredential),
        /// Origin: tests it.
        Probe(Probe),
        /// Takes it down.
        RemoveLease(RemoveLease),
        /// Forgets it.
        ForgetLease(ForgetLease),
    }
}
