//! What the signed policy says about leases that this cluster lends, whatever the broker arranged.

use comity_agent_model::lease::Lease;
use comity_agent_state::record::DonorRecord;

use super::Snapshot;
use super::placement_check::Ledger;
use crate::reconcile::bound_peering::BoundPeering;
use crate::signed_policy::Standing;
use crate::signed_policy::lease_permit::{
    LentFacts, POLICY_UNVERIFIED, SIGNED_POLICY, latest_end_ms, lent_by, objection, withdrawn,
};

/// The answer about a new lease.
pub(super) enum SignedTerms {
    /// It may be admitted.
    Permit,
    /// The broker's commit is being judged.
    Wait,
    /// It is refused, with code and reason.
    Refuse(&'static str, String),
}

/// Whether a new lease of `milli` thousandths of GPUs may be admitted.
pub(super) fn check(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    bound: &BoundPeering,
    milli: u64,
    ledger: &Ledger<'_>,
) -> SignedTerms {
    let (bundle, commit) = match snapshot.signed_policy.standing(&snapshot.desired.policy_commit) {
        Standing::Free => return SignedTerms::Permit,
        Standing::Waits => return SignedTerms::Wait,
        Standing::Unshown(reason) => {
            let message =
                format!("this cluster lends by the signed policy alone, which the broker does not show: {reason}");
            return SignedTerms::Refuse(POLICY_UNVERIFIED, message);
        }
        Standing::Verified { bundle, commit } => (bundle, commit),
    };
    let told = |id| snapshot.desired.leases.iter().find(|lease| lease.id == id);
    let others = ledger.amounts().filter(|(id, _)| *id != lease.id);
    let lent = lent_by(snapshot.cluster, others, told);
    match objection(bundle, commit, &facts(snapshot, lease, bound, milli), &lent) {
        None => SignedTerms::Permit,
        Some(message) => SignedTerms::Refuse(SIGNED_POLICY, message),
    }
}

/// The bound that the signed policy sets to the end of a lease in force.
pub(super) struct EndBound {
    /// No credential lasts longer, in milliseconds since 1970.
    pub(super) latest_ms: u64,
    /// Why it is not prolonged any more.
    pub(super) withdrawn: Option<String>,
}

/// The bound of a lease in force; `None` without a signed policy. A lease that the policy no longer permits keeps its
/// end: what becomes of it until then is for the document's `onWithdrawal`, which the brokers carry out.
pub(super) fn end_bound(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    record: &DonorRecord,
    bound: &BoundPeering,
) -> Option<EndBound> {
    let (bundle, commit) = snapshot.signed_policy.verified()?;
    let facts = facts(snapshot, lease, bound, record.capacity.milli());
    let latest_ms = latest_end_ms(bundle, snapshot.cluster, snapshot.now_ms);
    Some(match withdrawn(bundle, commit, &facts) {
        None => EndBound { latest_ms, withdrawn: None },
        Some(reason) => {
            let sealed_ms = record.sealed.as_ref().map_or(0, |sealed| sealed.lease_end_ms);
            EndBound { latest_ms: sealed_ms, withdrawn: Some(reason) }
        }
    })
}

fn facts<'a>(snapshot: &'a Snapshot<'_>, lease: &'a Lease, bound: &'a BoundPeering, milli: u64) -> LentFacts<'a> {
    let (donor, now_ms) = (snapshot.cluster, snapshot.now_ms);
    LentFacts { lease, donor, institution: bound.institution().name(), milli, now_ms }
}
