//! What the signed policy says about leases that this cluster lends, and about the data of those that it borrows, whatever
//! the broker arranged.

use comity_agent_model::lease::Lease;
use comity_agent_state::record::{DonorRecord, OriginRecord};
use comity_policy::Bundle;
use comity_provenance::ObjectId;

use super::Snapshot;
use super::placement_check::OwnCapacity;
use crate::reconcile::bound_peering::BoundPeering;
use crate::signed_policy::Standing;
use crate::signed_policy::lease_permit::{
    LentFacts, POLICY_UNVERIFIED, SIGNED_POLICY, class_objection, data_objection, latest_end_ms, lent_by, objection,
    withdrawn,
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

/// The policy that decides about new leases, and its commit; otherwise the answer about each. `rule` is why it needs one.
fn deciding<'s>(snapshot: &'s Snapshot<'_>, rule: &str) -> Result<(&'s Bundle, ObjectId), SignedTerms> {
    match snapshot.signed_policy.standing(&snapshot.desired.policy_commit) {
        Standing::Free => Err(SignedTerms::Permit),
        Standing::Waits => Err(SignedTerms::Wait),
        Standing::Unshown(reason) => {
            let message = format!("{rule}, which the broker does not show: {reason}");
            Err(SignedTerms::Refuse(POLICY_UNVERIFIED, message))
        }
        Standing::Verified { bundle, commit } => Ok((bundle, commit)),
    }
}

/// Whether a new lease may be admitted with a record, on these own nodes.
pub(super) fn check(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    record: &DonorRecord,
    bound: &BoundPeering,
    own: OwnCapacity<'_>,
) -> SignedTerms {
    let (bundle, commit) = match deciding(snapshot, "this cluster lends by the signed policy alone") {
        Ok(deciding) => deciding,
        Err(terms) => return terms,
    };
    let lent = lent_by(snapshot.cluster, own.ledger.others(lease.id));
    let found = objection(bundle, commit, &facts(snapshot, lease, record, bound), &lent)
        .or_else(|| class_objection(bundle, commit, &record.class, &record.capacity, own.nodes));
    match found {
        None => SignedTerms::Permit,
        Some(message) => SignedTerms::Refuse(SIGNED_POLICY, message),
    }
}

/// Whether a new lease that this cluster would borrow may read its data at its donor. A lease that was accepted stays: the
/// brokers reclaim it, and its donor does not prolong it.
pub(super) fn check_data(snapshot: &Snapshot<'_>, lease: &Lease, record: Option<&OriginRecord>) -> SignedTerms {
    if lease.data.is_empty() || record.is_some_and(|record| record.credential.is_some()) {
        return SignedTerms::Permit;
    }
    let (bundle, commit) = match deciding(snapshot, "the data of this cluster's work goes where the signed policy says")
    {
        Ok(deciding) => deciding,
        Err(terms) => return terms,
    };
    let donor = lease.placement.as_ref().map_or("", |placement| placement.donor.as_str());
    match data_objection(bundle, commit, lease, (snapshot.cluster, donor), snapshot.now_ms) {
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

/// The bound of a lease in force; `None` without a signed policy. While the documents of the trusted commit are not here,
/// no lease is prolonged: a broker that hides them would have its way with every lease after a failover. A lease that the
/// policy no longer permits keeps its end: what becomes of it until then is for the document's `onWithdrawal`, which the
/// brokers carry out.
pub(super) fn end_bound(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    record: &DonorRecord,
    bound: &BoundPeering,
) -> Option<EndBound> {
    let sealed_ms = record.sealed.as_ref().map_or(0, |sealed| sealed.lease_end_ms);
    if snapshot.signed_policy.lacks_documents() {
        return Some(EndBound { latest_ms: sealed_ms, withdrawn: None });
    }
    let (bundle, commit) = snapshot.signed_policy.verified()?;
    let facts = facts(snapshot, lease, record, bound);
    let latest_ms = latest_end_ms(bundle, snapshot.cluster, snapshot.now_ms);
    Some(match withdrawn(bundle, commit, &facts) {
        None => EndBound { latest_ms, withdrawn: None },
        Some(reason) => EndBound { latest_ms: sealed_ms, withdrawn: Some(reason) },
    })
}

fn facts<'a>(
    snapshot: &'a Snapshot<'_>,
    lease: &'a Lease,
    record: &'a DonorRecord,
    bound: &'a BoundPeering,
) -> LentFacts<'a> {
    let DonorRecord { tenant, class, delivery, capacity, .. } = record;
    LentFacts {
        lease,
        tenant,
        class,
        data: record.data.as_slice(),
        purpose: &record.purpose,
        delivery: *delivery,
        donor: snapshot.cluster,
        institution: bound.institution().name(),
        milli: capacity.milli(),
        now_ms: snapshot.now_ms,
    }
}
