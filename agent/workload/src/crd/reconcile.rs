//! Converts a `GpuRequest` to a request, and a request to its status. Pure.

use comity_agent_model::gpu_demand::{GpuDemand, Share};
use comity_agent_model::lease::Lease;
use comity_proto::v1;
use comity_types::{LeaseState, RequestState};
use k8s_openapi::jiff::Timestamp;

use super::condition::{ConditionStatus, condition, conditions, time};
use super::gpu_request::{DeliveryKind, GpuRequest, GpuRequestSpec, GpuRequestStatus};
use super::lease_mirror::state_text;
use super::{Isolation, Numa, NvLink, camel};
use crate::burst::{CLASS, TENANT_LABEL};
use crate::reclaim::ReclaimNotice;

/// Defaults for fields that a `GpuRequest` leaves out.
#[derive(Clone, Debug, Default)]
pub(super) struct Defaults {
    /// This cluster.
    pub(super) cluster: String,
    /// Tenant of the namespace, or the agent's default; empty: none.
    pub(super) tenant: String,
    /// Class of the namespace, or the agent's default; empty: none.
    pub(super) class: String,
}

/// Prefix of a request's note; the object's UID follows.
const NOTE: &str = "GpuRequest ";

/// The UID of the `GpuRequest` that a request was made for.
pub(super) fn uid_in(note: &str) -> Option<&str> {
    note.strip_prefix(NOTE)?.rsplit_once(" #").map(|(_, uid)| uid)
}

/// The idempotency key of its submission.
pub(super) fn key(uid: &str) -> String {
    format!("gpurequest-{uid}")
}

/// The request's specification.
pub(super) fn spec(object: &GpuRequest, defaults: &Defaults) -> Result<v1::RequestSpec, String> {
    let (spec, metadata) = (&object.spec, &object.metadata);
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let tenant = match spec.tenant.as_deref() {
        _ if defaults.tenant.is_empty() => {
            return Err(format!("no tenant is charged for namespace {namespace}: label it {TENANT_LABEL}=TENANT"));
        }
        Some(tenant) if tenant != defaults.tenant => {
            return Err(format!(
                "spec.tenant is {tenant:?}, and namespace {namespace} is charged to {:?}: leave spec.tenant out, or \
                 use a namespace of that tenant",
                defaults.tenant
            ));
        }
        _ => defaults.tenant.clone(),
    };
    let has_default_class = spec.selector.is_none() && spec.template.is_none();
    let default_class = || if has_default_class { defaults.class.clone() } else { String::new() };
    let class = spec.class.clone().unwrap_or_else(default_class);
    if class.is_empty() && has_default_class {
        return Err(format!("no GPU class: give spec.class or spec.selector, or {CLASS} on the namespace"));
    }
    let share = match (spec.milli, &spec.mig_profile, spec.memory_mib) {
        (Some(milli), _, _) => Some(Share::Milli(u32::try_from(milli).unwrap_or(0))),
        (None, Some(profile), _) => Some(Share::MigProfile(profile.clone())),
        (None, None, Some(memory)) => Some(Share::MemoryMib(u64::try_from(memory).unwrap_or(0))),
        (None, None, None) => spec.template.is_none().then_some(Share::Whole),
    };
    let duration_ms = given_ms("spec.duration", spec.duration.as_deref())?;
    let release_idle_ms = given_ms("spec.releaseIdle", spec.release_idle.as_deref())?;
    let window = spec.window.clone().unwrap_or_default();
    let amount = |given: Option<i64>| u64::try_from(given.unwrap_or(0)).unwrap_or(0);
    let delivery = match spec.delivery {
        // The template says, or the federation.
        None if spec.template.is_some() => v1::Delivery::Unspecified,
        None | Some(DeliveryKind::VirtualNode) => v1::Delivery::VirtualNode,
        Some(DeliveryKind::Namespace) => v1::Delivery::Namespace,
    };
    let name: String = metadata.name.as_deref().unwrap_or_default().chars().take(100).collect();
    let gpus = GpuDemand {
        class,
        selector: spec.selector.clone().unwrap_or_default(),
        share,
        count: count(spec.gpus.unwrap_or(0)),
        cpu_milli_per_gpu: amount(spec.cpu_milli_per_gpu),
        memory_mib_per_gpu: amount(spec.memory_mib_per_gpu),
        isolation: Isolation::to_message(spec.isolation),
    };
    Ok(v1::RequestSpec {
        tenant,
        origin: defaults.cluster.clone(),
        gpus: Some(gpus.to_message()),
        topology: Some(topology(spec)),
        members: spec.members.as_ref().map(|it| v1::Members { min: count(it.min), desired: count(it.desired) }),
        spread_donors: spec.spread_donors.unwrap_or(false),
        data: spec
            .data
            .iter()
            .map(|it| v1::DataNeed { dataset: it.dataset.clone(), mib: amount(Some(it.mib)) })
            .collect(),
        priority: spec.priority_class.clone().unwrap_or_default(),
        preemptible: spec.preemptible.as_ref().map(|it| v1::Preemptible {
            grace_ms: u64::from(count(it.grace_seconds.unwrap_or(0))).saturating_mul(1_000),
            checkpoint: it.checkpoint.unwrap_or(false),
            same_gpu_type: it.same_gpu_type.unwrap_or(false),
        }),
        checkpoint_secret: spec.checkpoint_secret.clone().unwrap_or_default(),
        not_before_ms: unix_ms("spec.window.notBefore", window.not_before.as_deref())?,
        start_by_ms: unix_ms("spec.window.startBy", window.start_by.as_deref())?,
        duration_ms,
        release_idle_ms,
        delivery: delivery.into(),
        template: spec.template.clone().unwrap_or_default(),
        target_namespace: namespace,
        purpose: spec.purpose.clone().unwrap_or_default(),
        note: format!("{NOTE}{name} #{}", metadata.uid.as_deref().unwrap_or_default()),
        ..v1::RequestSpec::default()
    })
}

/// A duration in milliseconds; 0 for none.
fn given_ms(field: &str, given: Option<&str>) -> Result<u64, String> {
    let Some(text) = given else { return Ok(0) };
    crate::burst::duration_ms(text).ok_or_else(|| format!("{field} is {text:?}: write 90s, 30m, 2h or at most 90d"))
}

/// The definition admits no negative count.
fn count(given: i32) -> u32 {
    u32::try_from(given).unwrap_or(0)
}

fn topology(spec: &GpuRequestSpec) -> v1::Topology {
    let given = spec.topology.clone().unwrap_or_default();
    v1::Topology {
        same_node: given.same_node.or(spec.same_node).unwrap_or(false),
        whole_node: given.whole_node.unwrap_or(false),
        nvlink: NvLink::to_message(given.nvlink).into(),
        numa: Numa::to_message(given.numa).into(),
        rdma_gbits: count(given.rdma_gbits.unwrap_or(0)),
        spread_nodes: given.spread_nodes.unwrap_or(false),
    }
}

/// A time of RFC 3339 in milliseconds since 1970; 0 for none.
fn unix_ms(field: &str, given: Option<&str>) -> Result<u64, String> {
    let Some(text) = given else { return Ok(0) };
    let time = text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_millisecond()).ok());
    time.filter(|ms| *ms > 0).ok_or_else(|| format!("{field} is {text:?}: write a time such as 2026-03-01T20:00:00Z"))
}

/// A status without a request, with one sentence why.
pub(super) fn refused(object: &GpuRequest, state: &str, reason: &str, message: &str, now_ms: u64) -> GpuRequestStatus {
    let old = object.status.clone().unwrap_or_default();
    let accepted = condition("Accepted", ConditionStatus::False, reason, message, now_ms);
    GpuRequestStatus {
        observed_generation: object.metadata.generation,
        state: Some(state.to_owned()),
        message: Some(message.to_owned()),
        conditions: conditions(&old.conditions, vec![accepted]),
        ..old
    }
}

/// The status that follows from the request and its lease.
pub(super) fn status(
    object: &GpuRequest,
    request: &v1::Request,
    lease: Option<&Lease>,
    now_ms: u64,
) -> GpuRequestStatus {
    let old = object.status.clone().unwrap_or_default();
    let lease = lease.filter(|lease| lease.id.to_string() == request.lease);
    let stands = RequestState::try_from(request.state()).unwrap_or(RequestState::Queued);
    let state = match (stands, lease) {
        (RequestState::Placed, Some(lease)) => state_text(lease.state),
        (stands, _) => camel(stands.as_str()),
    };
    let is_ready = lease.is_some_and(|lease| lease.state == Some(LeaseState::Active)) && state == "Active";
    let message = match lease.filter(|lease| !lease.message.is_empty()) {
        Some(lease) => lease.message.clone(),
        None => request.message.clone(),
    };
    let placed = !request.lease.is_empty() && stands == RequestState::Placed;
    let fresh = vec![
        condition(
            "Accepted",
            ConditionStatus::True,
            "Submitted",
            &format!("it is {} at the broker", request.id),
            now_ms,
        ),
        condition("Placed", placed, if placed { "Placed" } else { &state }, &message, now_ms),
        condition("Ready", is_ready, if is_ready { "Active" } else { &state }, &message, now_ms),
    ];
    let donor = lease.and_then(|lease| lease.placement.as_ref()).map(|placement| placement.donor.to_string());
    GpuRequestStatus {
        observed_generation: object.metadata.generation,
        state: Some(state),
        request: Some(request.id.clone()),
        lease: Some(request.lease.clone()).filter(|lease| !lease.is_empty()),
        leases: if request.leases.len() > 1 { request.leases.clone() } else { Vec::new() },
        donor: donor.or(old.donor),
        expires_at: lease.and_then(|lease| time(lease.expires_at_ms)),
        reclaim_at: lease.and_then(ReclaimNotice::of).map(|reclaim| reclaim.at),
        idle_release_at: lease.and_then(Lease::idle_release_ms).and_then(time),
        message: Some(message).filter(|message| !message.is_empty()),
        conditions: conditions(&old.conditions, fresh),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::lease::placement::Placement;
    use comity_types::{LeaseId, PeeringId, RequestId};

    use super::*;
    use crate::crd::{DataNeed, Members, Preemptible, Topology, Window};

    fn object(spec: GpuRequestSpec) -> GpuRequest {
        let mut object = GpuRequest::new("train", spec);
        object.metadata.namespace = Some("team-a".to_owned());
        object.metadata.uid = Some("u-1".to_owned());
        object
    }

    fn defaults() -> Defaults {
        Defaults { cluster: "here".to_owned(), tenant: "vision".to_owned(), class: "frontier".to_owned() }
    }

    #[test]
    fn a_request_has_the_objects_fields() {
        let given =
            GpuRequestSpec { gpus: Some(2), milli: Some(250), duration: Some("2h".to_owned()), ..Default::default() };
        let asked = spec(&object(given), &defaults()).unwrap();
        assert_eq!((asked.tenant.as_str(), asked.origin.as_str(), asked.duration_ms), ("vision", "here", 7_200_000));
        assert_eq!((asked.target_namespace.as_str(), asked.delivery()), ("team-a", v1::Delivery::VirtualNode));
        let gpus = asked.gpus.unwrap();
        assert_eq!((gpus.count, gpus.class.as_str()), (2, "frontier"));
        assert_eq!(GpuDemand::from(gpus).share, Some(Share::Milli(250)));
        assert_eq!(uid_in(&asked.note), Some("u-1"));
        assert_eq!(uid_in("burst of job/x 1x nvidia.com/gpu #u-1"), None);
    }

    #[test]
    fn a_template_sets_what_the_object_leaves_out() {
        let given = GpuRequestSpec { template: Some("notebook".to_owned()), ..Default::default() };
        let asked = spec(&object(given.clone()), &defaults()).unwrap();
        assert_eq!((asked.template.as_str(), asked.delivery()), ("notebook", v1::Delivery::Unspecified));
        let gpus = asked.gpus.unwrap();
        assert_eq!((gpus.class.as_str(), gpus.count, gpus.share), ("", 0, None));
        let given = GpuRequestSpec {
            gpus: Some(2),
            class: Some("large".to_owned()),
            delivery: Some(DeliveryKind::VirtualNode),
            ..given
        };
        let asked = spec(&object(given), &defaults()).unwrap();
        assert_eq!(asked.delivery(), v1::Delivery::VirtualNode);
        assert_eq!(asked.gpus.map(|gpus| (gpus.class, gpus.count)), Some(("large".to_owned(), 2)));
    }

    #[test]
    fn a_request_has_the_objects_options() {
        let mut given = GpuRequestSpec {
            gpus: Some(4),
            isolation: Some(Isolation::Hardware),
            same_node: Some(true),
            topology: Some(Topology {
                nvlink: Some(NvLink::Required),
                numa: Some(Numa::Aligned),
                rdma_gbits: Some(400),
                whole_node: Some(true),
                same_node: None,
                spread_nodes: Some(true),
            }),
            members: Some(Members { min: 2, desired: 8 }),
            spread_donors: Some(true),
            data: vec![DataNeed { dataset: "imagenet-1k".to_owned(), mib: 153_600 }],
            purpose: Some("research".to_owned()),
            priority_class: Some("urgent".to_owned()),
            preemptible: Some(Preemptible {
                grace_seconds: Some(600),
                checkpoint: Some(true),
                same_gpu_type: Some(true),
            }),
            window: Some(Window { not_before: None, start_by: Some("2026-03-01T20:00:00Z".to_owned()) }),
            release_idle: Some("30m".to_owned()),
            checkpoint_secret: Some("checkpoints".to_owned()),
            ..Default::default()
        };
        let asked = spec(&object(given.clone()), &defaults()).unwrap();
        let topology = asked.topology.unwrap();
        assert!(topology.same_node && topology.whole_node && topology.rdma_gbits == 400 && topology.spread_nodes);
        assert!(asked.spread_donors);
        assert_eq!(asked.gpus.map(|gpus| gpus.isolation()), Some(v1::Isolation::Hardware));
        assert_eq!(asked.data, [v1::DataNeed { dataset: "imagenet-1k".to_owned(), mib: 153_600 }]);
        assert_eq!(asked.purpose, "research");
        assert_eq!((topology.nvlink(), topology.numa()), (v1::NvLink::Required, v1::Numa::Aligned));
        assert_eq!(asked.members, Some(v1::Members { min: 2, desired: 8 }));
        assert_eq!(
            asked.preemptible,
            Some(v1::Preemptible { grace_ms: 600_000, checkpoint: true, same_gpu_type: true })
        );
        assert_eq!((asked.priority.as_str(), asked.not_before_ms), ("urgent", 0));
        assert_eq!((asked.start_by_ms, asked.release_idle_ms), (1_772_395_200_000, 1_800_000));
        assert_eq!(asked.checkpoint_secret, "checkpoints");
        let odd = GpuRequestSpec { release_idle: Some("soon".to_owned()), ..given.clone() };
        let error = spec(&object(odd), &defaults()).unwrap_err();
        assert!(error.contains("spec.releaseIdle") && error.contains("soon"), "{error}");
        given.window = Some(Window { not_before: Some("tonight".to_owned()), start_by: None });
        let error = spec(&object(given), &defaults()).unwrap_err();
        assert!(error.contains("spec.window.notBefore") && error.contains("tonight"), "{error}");
    }

    #[test]
    fn a_namespace_cannot_be_accounted_to_somebody_else() {
        let given = GpuRequestSpec { gpus: Some(1), tenant: Some("robotics".to_owned()), ..Default::default() };
        let error = spec(&object(given.clone()), &defaults()).unwrap_err();
        assert!(error.contains("robotics") && error.contains("vision"), "{error}");
        let unknown = Defaults { tenant: String::new(), ..defaults() };
        assert!(spec(&object(given), &unknown).unwrap_err().contains(TENANT_LABEL));
        let classless = Defaults { class: String::new(), ..defaults() };
        let given = GpuRequestSpec { gpus: Some(1), ..Default::default() };
        assert!(spec(&object(given), &classless).unwrap_err().contains("spec.class"));
    }

    #[test]
    fn the_status_follows_request_and_lease() {
        let object = object(GpuRequestSpec { gpus: Some(1), ..Default::default() });
        let mut request =
            v1::Request { id: "req-3".to_owned(), state: 1, message: "no donor".to_owned(), ..Default::default() };
        let queued = status(&object, &request, None, 1_000);
        assert_eq!((queued.state.as_deref(), queued.message.as_deref()), (Some("Queued"), Some("no donor")));
        assert_eq!(queued.conditions[2].status, "False");
        request.state = v1::RequestState::Placed.into();
        request.lease = "lease-3".to_owned();
        request.leases = vec!["lease-3".to_owned()];
        let lease = Lease {
            state: Some(LeaseState::Active),
            expires_at_ms: 86_400_000,
            release_idle_ms: 3_600_000,
            idle_since_ms: 7_200_000,
            placement: Some(Placement::new("institute".parse().unwrap())),
            ..Lease::new(LeaseId(3), RequestId(3), "here".parse().unwrap(), PeeringId(1))
        };
        let active = status(&object, &request, Some(&lease), 2_000);
        assert_eq!((active.state.as_deref(), active.donor.as_deref()), (Some("Active"), Some("institute")));
        assert_eq!(active.expires_at.as_deref(), Some("1970-01-02T00:00:00Z"));
        assert_eq!(active.idle_release_at.as_deref(), Some("1970-01-01T03:00:00Z"));
        assert!(active.conditions.iter().all(|condition| condition.status == "True"));
        assert!(active.leases.is_empty(), "one has its own field");
        request.leases.push("lease-7".to_owned());
        assert_eq!(status(&object, &request, Some(&lease), 2_000).leases, ["lease-3", "lease-7"]);
        request.state = v1::RequestState::Completed.into();
        let ended = status(&object, &request, None, 3_000);
        assert_eq!((ended.state.as_deref(), ended.conditions[2].status.as_str()), (Some("Completed"), "False"));
    }
}
