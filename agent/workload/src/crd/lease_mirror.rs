//! Converts a lease to its `GpuLease`. Pure.

use comity_agent_model::lease::Lease;
use comity_agent_model::lease::placement::Placement;
use comity_types::{Delivery, LeaseState};

use super::condition::{Condition, ConditionStatus, condition, conditions, time};
use super::gpu_lease::{Functions, GpuLease, GpuLeaseSpec, GpuLeaseStatus, Side};
use super::{DeliveryKind, camel};
use crate::reclaim::{CHECKPOINTED, RECLAIM_AT, RECLAIM_REASON, ReclaimNotice};

/// Namespace of `GpuLease`s without a target namespace here.
const SYSTEM_NAMESPACE: &str = "comity-system";

/// The mirror of a lease; `None` for one that is not this cluster's.
pub(super) fn mirror(lease: &Lease, cluster: &str, old: Option<&GpuLease>, now_ms: u64) -> Option<GpuLease> {
    let placement = lease.placement.as_ref();
    let donor = placement.map_or("", |placement| placement.donor.as_str());
    let (side, peer, namespace) = if lease.origin.as_str() == cluster {
        (Side::Origin, donor.to_owned(), lease.target_namespace.as_str())
    } else if donor == cluster {
        (Side::Donor, lease.origin.to_string(), SYSTEM_NAMESPACE)
    } else {
        return None;
    };
    let namespace = if namespace.is_empty() { SYSTEM_NAMESPACE } else { namespace };
    let mut object = GpuLease::new(
        &lease.id.to_string(),
        GpuLeaseSpec {
            lease: lease.id.to_string(),
            request: lease.request.to_string(),
            side,
            peer,
            tenant: lease.tenant.clone(),
            gpus: lease.gpus.as_ref().map_or(0, |gpus| i64::from(gpus.count)),
            functions: placement.map(functions).unwrap_or_default(),
            resource: placement.map(|placement| placement.resource_name.clone()).unwrap_or_default(),
            delivery: match lease.delivery {
                Delivery::VirtualNode => DeliveryKind::VirtualNode,
                Delivery::Namespace => DeliveryKind::Namespace,
            },
        },
    );
    object.metadata.namespace = Some(namespace.to_owned());
    let marks = [("app.kubernetes.io/managed-by", "comity-agent")];
    object.metadata.labels = Some(marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let reclaim = ReclaimNotice::of(lease);
    object.metadata.annotations = reclaim.as_ref().map(|it| {
        [(RECLAIM_AT, &it.at), (RECLAIM_REASON, &it.reason)].map(|(key, text)| (key.to_owned(), text.clone())).into()
    });
    let before = old.and_then(|old| old.status.as_ref()).map(|status| status.conditions.clone()).unwrap_or_default();
    let state_now = state_text(lease.state);
    let is_active = lease.state == Some(LeaseState::Active);
    let ready = |type_: &str, is_ready: bool| {
        condition(type_, is_ready, if is_ready { "Ready" } else { "Waiting" }, "", now_ms)
    };
    object.status = Some(GpuLeaseStatus {
        state: Some(state_now.clone()),
        end_reason: lease.end_reason.map(|reason| camel(reason.as_str())),
        expires_at: time(lease.expires_at_ms),
        reclaim_at: reclaim.as_ref().map(|reclaim| reclaim.at.clone()),
        idle_release_at: lease.idle_release_ms().and_then(time),
        message: Some(lease.message.clone()).filter(|message| !message.is_empty()),
        conditions: conditions(
            &before,
            vec![
                ready("DonorReady", lease.donor_ready),
                ready("OriginReady", lease.origin_ready),
                condition("Active", is_active, &state_now, &lease.message, now_ms),
                reclaiming(reclaim.as_ref(), now_ms),
                idle(lease, now_ms),
            ],
        ),
    });
    Some(object)
}

/// Virtual functions that pods must request besides GPUs.
fn functions(placement: &Placement) -> Vec<Functions> {
    let of = |resource: &str| {
        let on_nodes = placement.nodes.iter().flat_map(|node| &node.functions);
        on_nodes.filter(|functions| functions.resource == resource).map(|functions| functions.count).min().unwrap_or(0)
    };
    let all = placement.functions().into_iter().map(|(resource, count)| Functions {
        resource: resource.to_owned(),
        count: i64::try_from(count).unwrap_or(i64::MAX),
        per_node: of(resource).into(),
    });
    all.collect()
}

/// The condition `Reclaiming`: reason, deadline and next lease.
fn reclaiming(reclaim: Option<&ReclaimNotice>, now_ms: u64) -> Condition {
    let Some(ReclaimNotice { at, reason, message, moved_to, .. }) = reclaim else {
        return condition("Reclaiming", ConditionStatus::False, "NotReclaimed", "", now_ms);
    };
    let goes_on = match moved_to {
        None => "its request is placed again".to_owned(),
        Some(next) => format!("it continues as {next}"),
    };
    condition(
        "Reclaiming",
        ConditionStatus::True,
        &camel(reason),
        &format!("{message}; it ends at {at}; {goes_on}"),
        now_ms,
    )
}

/// The condition `Idle`: since when, and the time of the release.
fn idle(lease: &Lease, now_ms: u64) -> Condition {
    let Some((since, at)) = time(lease.idle_since_ms).zip(lease.idle_release_ms().and_then(time)) else {
        return condition("Idle", ConditionStatus::False, "InUse", "", now_ms);
    };
    let message = format!("no work has used it since {since}; it is released at {at} unless a pod does");
    condition("Idle", ConditionStatus::True, "NoWork", &message, now_ms)
}

/// The reclaim annotations of a `GpuLease`.
pub(super) fn marks(object: &GpuLease) -> [Option<&String>; 2] {
    let annotations = object.metadata.annotations.as_ref();
    [RECLAIM_AT, RECLAIM_REASON].map(|key| annotations.and_then(|all| all.get(key)))
}

/// Whether an annotation of a `GpuLease` says that the work is saved.
pub(super) fn is_answered(object: &GpuLease) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(CHECKPOINTED)).is_some_and(|text| text == "true")
}

/// The state, as users read it.
pub(super) fn state_text(state: Option<LeaseState>) -> String {
    camel(state.map_or("unknown", LeaseState::as_str))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::lease::placement::{NodePlacement, VirtualFunctions};
    use comity_agent_model::lease::reclaim::{Reclaim, ReclaimReason};
    use comity_types::{LeaseId, PeeringId, RequestId};

    use super::*;

    fn lease_here() -> Lease {
        Lease::new(LeaseId(4), RequestId(4), "here".parse().unwrap(), PeeringId(1))
    }

    #[test]
    fn both_sides_see_the_lease_and_nobody_else_does() {
        let lease = Lease {
            target_namespace: "team-a".to_owned(),
            state: Some(LeaseState::Active),
            placement: Some(Placement::new("there".parse().unwrap())),
            ..lease_here()
        };
        let origin = mirror(&lease, "here", None, 1_000).unwrap();
        assert_eq!((origin.spec.side, origin.spec.peer.as_str()), (Side::Origin, "there"));
        assert_eq!(origin.metadata.namespace.as_deref(), Some("team-a"));
        let donor = mirror(&lease, "there", None, 1_000).unwrap();
        assert_eq!((donor.spec.side, donor.metadata.namespace.as_deref()), (Side::Donor, Some("comity-system")));
        assert!(mirror(&lease, "elsewhere", None, 1_000).is_none());
        // A second conversion changes nothing.
        assert_eq!(mirror(&lease, "here", Some(&origin), 9_000).unwrap(), origin);
        assert_eq!(marks(&origin), [None, None]);
        assert_eq!(origin.status.unwrap().reclaim_at, None);
    }

    #[test]
    fn pods_learn_which_functions_to_request() {
        let node = |count| NodePlacement {
            functions: vec![VirtualFunctions { resource: "nvidia.com/ib_vf".to_owned(), count }],
            ..NodePlacement::default()
        };
        let nodes = vec![node(3), node(2)];
        let lease =
            Lease { placement: Some(Placement { nodes, ..Placement::new("there".parse().unwrap()) }), ..lease_here() };
        let shown = mirror(&lease, "here", None, 1_000).unwrap().spec.functions;
        assert_eq!(shown, [Functions { resource: "nvidia.com/ib_vf".to_owned(), count: 5, per_node: 2 }]);
        let silent = serde_json::to_value(mirror(&Lease { placement: None, ..lease }, "here", None, 1_000)).unwrap();
        assert!(silent["spec"].get("functions").is_none(), "{silent}");
    }

    #[test]
    fn an_idle_lease_shows_when_it_is_released() {
        let mut lease = Lease {
            state: Some(LeaseState::Active),
            release_idle_ms: 1_800_000,
            idle_since_ms: 86_400_000,
            ..lease_here()
        };
        let shown = |lease: &Lease| {
            let status = mirror(lease, "here", None, 1_000).unwrap().status.unwrap();
            let condition = status.conditions.iter().find(|one| one.type_ == "Idle").unwrap().clone();
            (status.idle_release_at, condition.status, condition.message)
        };
        let (at, status, message) = shown(&lease);
        assert_eq!((at.as_deref(), status.as_str()), (Some("1970-01-02T00:30:00Z"), "True"));
        assert!(message.contains("since 1970-01-02T00:00:00Z") && message.contains("unless a pod does"), "{message}");
        lease.state = Some(LeaseState::Reclaiming);
        assert_eq!(shown(&lease), (None, "False".to_owned(), String::new()));
        lease = Lease { state: Some(LeaseState::Active), idle_since_ms: 0, ..lease };
        assert_eq!(shown(&lease).0, None);
    }

    #[test]
    fn a_reclaim_is_shown_with_its_reason_and_its_end() {
        let mut lease = Lease {
            state: Some(LeaseState::Reclaiming),
            message: "reclaimed: the donor needs it for local work".to_owned(),
            moved_to: Some(LeaseId(9)),
            reclaim: Some(Reclaim { reason: Some(ReclaimReason::LocalNeed), since_ms: 0, deadline_ms: 86_400_000 }),
            ..lease_here()
        };
        let mut shown = mirror(&lease, "here", None, 1_000).unwrap();
        let at = "1970-01-02T00:00:00Z".to_owned();
        assert_eq!(marks(&shown), [Some(&at), Some(&"local-need".to_owned())]);
        let status = shown.status.clone().unwrap();
        assert_eq!((status.state.as_deref(), status.reclaim_at.as_ref()), (Some("Reclaiming"), Some(&at)));
        let condition = status.conditions.iter().find(|one| one.type_ == "Reclaiming").unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "LocalNeed"));
        for part in ["for local work", &at, "continues as lease-9"] {
            assert!(condition.message.contains(part), "{part}: {}", condition.message);
        }
        assert!(!is_answered(&shown));
        shown.metadata.annotations.as_mut().unwrap().insert(CHECKPOINTED.to_owned(), "true".to_owned());
        assert!(is_answered(&shown));
        // A lease that ends by its reclaim is no longer being reclaimed.
        lease.state = Some(LeaseState::Ending);
        assert_eq!(marks(&mirror(&lease, "here", Some(&shown), 2_000).unwrap()), [None, None]);
    }
}
