//! From a lease to its `GpuLease`: pure.

use comity_proto::v1;

use super::gpu_lease::{GpuLease, GpuLeaseSpec, GpuLeaseStatus, Side};
use super::reconcile::condition;
use super::{DeliveryKind, conditions, time};

/// Where leases are shown that have no namespace of their own here.
const SYSTEM_NAMESPACE: &str = "comity-system";

/// The mirror of a lease; `None` for one that is not this cluster's.
pub(super) fn mirror(lease: &v1::Lease, cluster: &str, old: Option<&GpuLease>, now_ms: u64) -> Option<GpuLease> {
    let placement = lease.placement.clone().unwrap_or_default();
    let (side, peer, namespace) = if lease.origin == cluster {
        (Side::Origin, placement.donor.clone(), lease.target_namespace.as_str())
    } else if placement.donor == cluster {
        (Side::Donor, lease.origin.clone(), SYSTEM_NAMESPACE)
    } else {
        return None;
    };
    let namespace = if namespace.is_empty() { SYSTEM_NAMESPACE } else { namespace };
    let mut object = GpuLease::new(
        &lease.id,
        GpuLeaseSpec {
            lease: lease.id.clone(),
            request: lease.request.clone(),
            side,
            peer,
            tenant: lease.tenant.clone(),
            gpus: lease.gpus.as_ref().map_or(0, |gpus| i64::from(gpus.count)),
            resource: placement.resource_name,
            delivery: match lease.delivery() {
                v1::Delivery::VirtualNode => DeliveryKind::VirtualNode,
                _ => DeliveryKind::Namespace,
            },
        },
    );
    object.metadata.namespace = Some(namespace.to_owned());
    let marks = [("app.kubernetes.io/managed-by", "comity-agent")];
    object.metadata.labels = Some(marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let before = old.and_then(|old| old.status.as_ref()).map(|status| status.conditions.clone()).unwrap_or_default();
    let state_now = state(lease.state());
    let is_active = lease.state() == v1::LeaseState::Active;
    let ready = |type_: &str, is_ready: bool| {
        condition(type_, is_ready, if is_ready { "Ready" } else { "Waiting" }, "", now_ms)
    };
    object.status = Some(GpuLeaseStatus {
        state: Some(state_now.to_owned()),
        end_reason: end_reason(lease.end_reason()).map(str::to_owned),
        expires_at: time(lease.expires_at_ms),
        message: Some(lease.message.clone()).filter(|message| !message.is_empty()),
        conditions: conditions(
            &before,
            vec![
                ready("DonorReady", lease.donor_ready),
                ready("OriginReady", lease.origin_ready),
                condition("Active", is_active, state_now, &lease.message, now_ms),
            ],
        ),
    });
    Some(object)
}

/// The state, as users read it.
pub(super) fn state(state: v1::LeaseState) -> &'static str {
    match state {
        v1::LeaseState::Unspecified => "Unknown",
        v1::LeaseState::Placed => "Placed",
        v1::LeaseState::Connecting => "Connecting",
        v1::LeaseState::Active => "Active",
        v1::LeaseState::Suspect => "Suspect",
        v1::LeaseState::Reclaiming => "Reclaiming",
        v1::LeaseState::Ending => "Ending",
        v1::LeaseState::Ended => "Ended",
    }
}

fn end_reason(reason: v1::EndReason) -> Option<&'static str> {
    match reason {
        v1::EndReason::Unspecified => None,
        v1::EndReason::Released => Some("Released"),
        v1::EndReason::Expired => Some("Expired"),
        v1::EndReason::Cancelled => Some("Cancelled"),
        v1::EndReason::HoldExpired => Some("HoldExpired"),
        v1::EndReason::DonorFailed => Some("DonorFailed"),
        v1::EndReason::OriginFailed => Some("OriginFailed"),
        v1::EndReason::Reclaimed => Some("Reclaimed"),
        v1::EndReason::Preempted => Some("Preempted"),
        v1::EndReason::NotNeeded => Some("NotNeeded"),
        v1::EndReason::DeviceLost => Some("DeviceLost"),
        v1::EndReason::NodeLost => Some("NodeLost"),
        v1::EndReason::DonorLost => Some("DonorLost"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_lease_and_nobody_else_does() {
        let lease = v1::Lease {
            id: "lease-4".to_owned(),
            origin: "here".to_owned(),
            target_namespace: "team-a".to_owned(),
            state: v1::LeaseState::Active.into(),
            placement: Some(v1::Placement { donor: "there".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let origin = mirror(&lease, "here", None, 1_000).unwrap();
        assert_eq!((origin.spec.side, origin.spec.peer.as_str()), (Side::Origin, "there"));
        assert_eq!(origin.metadata.namespace.as_deref(), Some("team-a"));
        let donor = mirror(&lease, "there", None, 1_000).unwrap();
        assert_eq!((donor.spec.side, donor.metadata.namespace.as_deref()), (Side::Donor, Some("comity-system")));
        assert!(mirror(&lease, "elsewhere", None, 1_000).is_none());
        // Looked at again, nothing changes.
        assert_eq!(mirror(&lease, "here", Some(&origin), 9_000).unwrap(), origin);
    }
}
