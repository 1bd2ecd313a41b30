//! What this cluster's own policies say about its peers, whatever the broker arranged.

use comity_agent_model::borrowing_policy::BorrowingTerms;
use comity_agent_model::lease::Lease;
use comity_agent_model::peering::PeeringDirective;
use comity_agent_model::target_namespace::DEFAULT_TARGET_NAMESPACE;
use comity_agent_state::record::OriginRecord;
use comity_types::Side;

use super::Snapshot;

/// Why this cluster does not accept a lease that it would borrow. One that it accepted stays: limits apply to new leases.
pub(super) fn obstacle(snapshot: &Snapshot<'_>, lease: &Lease, record: Option<&OriginRecord>) -> Option<String> {
    if record.is_some_and(|record| record.credential.is_some()) {
        return None;
    }
    let institution = snapshot.directive(lease.peering).map_or("", |directive| directive.peer_institution.as_str());
    let terms = BorrowingTerms {
        donor: lease.placement.as_ref().map_or("", |placement| placement.donor.as_str()),
        institution,
        tenant: &lease.tenant,
        namespace: if lease.target_namespace.is_empty() { DEFAULT_TARGET_NAMESPACE } else { &lease.target_namespace },
    };
    snapshot.borrowing.check(&terms).err()
}

/// Why no tunnel is built to the other side of a new peering: no lease over it would be accepted here.
pub(super) fn peer_obstacle(snapshot: &Snapshot<'_>, directive: &PeeringDirective, side: Side) -> Option<String> {
    let (peering, institution) = (&directive.peering, directive.peer_institution.as_str());
    if snapshot.records.epochs(peering.id).next().is_some() {
        return None;
    }
    let checked = match side {
        Side::Donor => snapshot.policy.check_peer(peering.origin.as_str(), institution),
        Side::Origin => snapshot.borrowing.check_peer(peering.donor.as_str(), institution),
    };
    checked.err()
}
