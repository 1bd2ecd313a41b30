//! What this cluster's own policies say about its peers, whatever the broker arranged.

use comity_agent_model::lease::Lease;
use comity_agent_model::lease::target_namespace::DEFAULT_TARGET_NAMESPACE;
use comity_agent_model::local_policy::borrowing_policy::{BorrowingRefusal, BorrowingTerms};
use comity_agent_model::peering::PeeringDirective;
use comity_agent_state::record::OriginRecord;
use comity_types::{LOCAL_POLICY, Side};

use super::Snapshot;
use crate::reconcile::bound_peering::BoundPeering;

/// Why this cluster does not accept a lease that it would borrow. One that it accepted stays: limits apply to new leases.
pub(super) fn obstacle(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    bound: &BoundPeering,
    record: Option<&OriginRecord>,
) -> Option<BorrowingRefusal> {
    if record.is_some_and(|record| record.credential.is_some()) {
        return None;
    }
    let terms = BorrowingTerms {
        donor: lease.placement.as_ref().map_or("", |placement| placement.donor.as_str()),
        institution: bound.institution().name(),
        tenant: &lease.tenant,
        namespace: if lease.target_namespace.is_empty() { DEFAULT_TARGET_NAMESPACE } else { &lease.target_namespace },
    };
    snapshot.borrowing.check(&terms).err()
}

/// Why no tunnel is built to the other side of a new peering: no lease over it would be accepted here.
pub(super) fn peer_obstacle(
    snapshot: &Snapshot<'_>,
    directive: &PeeringDirective,
    side: Side,
) -> Option<(&'static str, String)> {
    let peering = &directive.peering;
    if snapshot.records.epochs(peering.id).next().is_some() {
        return None;
    }
    let other = match side {
        Side::Donor => peering.origin.as_str(),
        Side::Origin => peering.donor.as_str(),
    };
    // A voucher says more than the broker does.
    let vouched = snapshot.records.peers.get(other).and_then(|peer| peer.vouched_institution());
    let institution = vouched.unwrap_or(&directive.peer_institution);
    match side {
        Side::Donor => snapshot.policy.check_peer(other, institution).err().map(|message| (LOCAL_POLICY, message)),
        Side::Origin => {
            let refused = snapshot.borrowing.check_peer(other, institution).err();
            refused.map(|refusal| (refusal.code, refusal.message))
        }
    }
}
