//! The facts kept of a GPU pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::burst::checkpoint_store::checkpoint_obstacle;
use crate::burst::facts::demand::{Shape, shape};
use crate::burst::facts::offload::obstacle;
use crate::burst::facts::pod_options::PodOptions;
use crate::burst::{CLASS, GATE, LEASE, LIQO_TAINT, OFFLOAD_LABEL, REQUEST};

/// Labels and annotations that group pods of several owners into a gang.
const GANG_KEYS: [&str; 3] =
    ["jobset.sigs.k8s.io/jobset-uid", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"];

/// Annotation of pods whose capacity Kueue has from a ProvisioningRequest.
const CONSUMES_REQUEST: &str = "autoscaling.x-k8s.io/consume-provisioning-request";

/// Identity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Owner of a pod, for grouping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind in lower case, as in "job"; "pod" for a pod without an owner.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID, or the gang's name.
    pub uid: String,
    /// Whether all of its pods must run at once.
    pub is_gang: bool,
}

/// The facts of a pod that requests GPUs, or carries the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Which pod.
    pub pod: PodRef,
    /// When it was created; whole seconds.
    pub created_ms: u64,
    /// Its owner.
    pub owner: Owner,
    /// Whether a controller would make it again.
    pub has_controller: bool,
    pub(crate) shape: Result<Shape, String>,
    pub(crate) options: PodOptions,
    /// Why it cannot burst, if so.
    pub obstacle: Option<String>,
    /// Whether it opted out.
    pub opted_out: bool,
    /// Class in its annotation.
    pub class: Option<String>,
    /// Its scheduling gates, in order.
    pub gates: Vec<String>,
    /// Which optional fields it has: a JSON patch must know.
    pub has: Parts,
    /// The node it is bound to.
    pub node: Option<String>,
    /// Whether a queue of Kueue chose its node: with a ProvisioningRequest.
    pub is_of_queue: bool,
    /// Lease named in its node selector.
    pub pinned: Option<String>,
    /// Leases whose taint it tolerates, together with Liqo's.
    pub tolerates: BTreeSet<String>,
    /// Succeeded or failed.
    pub is_finished: bool,
    /// The scheduler found no node, by the condition's reason; its message is not read.
    pub is_unschedulable: bool,
    /// Being deleted.
    pub is_deleting: bool,
    /// Request in its annotations.
    pub request: Option<String>,
    /// Lease in its annotations.
    pub lease: Option<String>,
}

/// Presence of optional fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// `spec.nodeSelector`.
    pub node_selector: bool,
    /// `spec.tolerations`.
    pub tolerations: bool,
    /// `metadata.annotations`.
    pub annotations: bool,
}

impl PodFacts {
    /// The facts of a pod; `None` for one that neither asks for GPUs nor carries our gate.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
        let gates: Vec<String> = spec.scheduling_gates.iter().flatten().map(|gate| gate.name.clone()).collect();
        let shape = match shape(pod) {
            Some(shape) => shape,
            None if gates.iter().any(|gate| gate == GATE) => Err("it asks for no GPU".to_owned()),
            None => return None,
        };
        let none = BTreeMap::new();
        let annotations = metadata.annotations.as_ref().unwrap_or(&none);
        let labels = metadata.labels.as_ref().unwrap_or(&none);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let scheduled = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let mut unscheduled =
            scheduled.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let reference =
            PodRef { namespace: metadata.namespace.clone()?, name: metadata.name.clone()?, uid: metadata.uid.clone()? };
        let (options, unreadable) = match PodOptions::from_annotations(annotations) {
            Ok(options) => (options, None),
            Err(problem) => (PodOptions::default(), Some(problem)),
        };
        let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
        Some(Self {
            created_ms: u64::try_from(created).unwrap_or(0),
            owner: owner(pod, &reference, labels, annotations),
            has_controller: metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true)),
            shape,
            options,
            obstacle: obstacle(pod).or(unreadable).or_else(|| checkpoint_obstacle(pod)),
            opted_out: [labels, annotations]
                .iter()
                .any(|map| map.get(OFFLOAD_LABEL).is_some_and(|text| text == "false")),
            class: annotations.get(CLASS).cloned(),
            gates,
            has: Parts {
                node_selector: spec.node_selector.is_some(),
                tolerations: spec.tolerations.is_some(),
                annotations: metadata.annotations.is_some(),
            },
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            is_of_queue: annotations.contains_key(CONSUMES_REQUEST),
            pinned: spec.node_selector.as_ref().and_then(|selector| selector.get(LEASE)).cloned(),
            tolerates: tolerated(pod),
            is_finished: matches!(phase, "Succeeded" | "Failed"),
            is_unschedulable: unscheduled.any(|condition| condition.reason.as_deref() == Some("Unschedulable")),
            is_deleting: metadata.deletion_timestamp.is_some(),
            request: annotations.get(REQUEST).cloned(),
            lease: annotations.get(LEASE).cloned(),
            pod: reference,
        })
    }

    /// Whether it carries our gate.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gates.iter().any(|gate| gate == GATE)
    }

    /// Whether it carries other gates.
    #[must_use]
    pub fn has_other_gates(&self) -> bool {
        self.gates.iter().any(|gate| gate != GATE)
    }
}

fn owner(
    pod: &Pod,
    reference: &PodRef,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Owner {
    let gang = GANG_KEYS.iter().find_map(|key| labels.get(*key).or_else(|| annotations.get(*key)));
    if let Some(gang) = gang {
        let name = labels.get("jobset.sigs.k8s.io/jobset-name").unwrap_or(gang);
        return Owner { kind: "gang".to_owned(), name: name.clone(), uid: gang.clone(), is_gang: true };
    }
    let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    match controller {
        Some(owner) => Owner {
            kind: owner.kind.to_ascii_lowercase(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            is_gang: owner.kind == "Job" && owner.api_version.starts_with("batch/"),
        },
        None => {
            Owner { kind: "pod".to_owned(), name: reference.name.clone(), uid: reference.uid.clone(), is_gang: false }
        }
    }
}

/// Leases whose taint is tolerated; empty unless Liqo's taint is too.
pub(crate) fn tolerated(pod: &Pod) -> BTreeSet<String> {
    let all = || pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let everywhere = |key: &Option<String>| key.as_deref().is_none_or(str::is_empty);
    if !all().any(|toleration| everywhere(&toleration.key) || toleration.key.as_deref() == Some(LIQO_TAINT)) {
        return BTreeSet::new();
    }
    all().filter(|toleration| toleration.key.as_deref() == Some(LEASE)).filter_map(|t| t.value.clone()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(metadata: Value, spec: Value, status: Value) -> Option<PodFacts> {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "team-a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "2" } } }] },
            "status": status,
        });
        for (part, extra) in [("metadata", metadata), ("spec", spec)] {
            for (key, value) in extra.as_object().unwrap() {
                pod[part][key] = value.clone();
            }
        }
        PodFacts::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_schedulers_reason_is_trusted_and_its_message_is_not() {
        let with = |reason: &str, message: &str| {
            let condition = json!({ "type": "PodScheduled", "status": "False", "reason": reason, "message": message });
            facts(json!({}), json!({}), json!({ "phase": "Pending", "conditions": [condition] })).unwrap()
        };
        assert!(with("Unschedulable", "whatever").is_unschedulable);
        assert!(!with("SchedulingGated", "Unschedulable: Insufficient nvidia.com/gpu").is_unschedulable);
        assert_eq!(with("Unschedulable", "").shape.unwrap().gpus, 2);
    }

    #[test]
    fn owners_and_gangs_are_distinguished() {
        let owned = |kind: &str, version: &str| {
            let owner = json!([{ "kind": kind, "apiVersion": version, "name": "o", "uid": "ou", "controller": true }]);
            facts(json!({ "ownerReferences": owner }), json!({}), json!({})).unwrap().owner
        };
        assert!(owned("Job", "batch/v1").is_gang && !owned("ReplicaSet", "apps/v1").is_gang);
        let alone = facts(json!({}), json!({}), json!({})).unwrap().owner;
        assert_eq!((alone.kind.as_str(), alone.uid.as_str()), ("pod", "u"));
        let group = json!({ "labels": { "scheduling.x-k8s.io/pod-group": "ring" } });
        let group = facts(group, json!({}), json!({})).unwrap().owner;
        assert!(group.is_gang && group.uid == "ring");
    }

    #[test]
    fn a_pod_with_an_invalid_annotation_stays_here() {
        let with = |grace: &str| {
            let annotations = json!({ "annotations": { crate::burst::PREEMPTIBLE_GRACE: grace } });
            facts(annotations, json!({}), json!({})).unwrap()
        };
        assert_eq!(with("10m").options.preemptible_grace_ms, Some(600_000));
        let obstacle = with("soon").obstacle.unwrap();
        assert!(obstacle.contains("comity.dev/preemptible-grace") && obstacle.contains("soon"), "{obstacle}");
    }

    #[test]
    fn our_marks_are_read_back() {
        let tolerations = json!([
            { "key": LIQO_TAINT, "operator": "Exists", "effect": "NoExecute" },
            { "key": LEASE, "operator": "Equal", "value": "lease-3", "effect": "NoSchedule" },
        ]);
        let pod = facts(
            json!({ "annotations": { REQUEST: "req-1", LEASE: "lease-3" } }),
            json!({ "tolerations": tolerations, "schedulingGates": [{ "name": "other" }, { "name": GATE }] }),
            json!({}),
        )
        .unwrap();
        assert!(pod.is_gated() && pod.has_other_gates() && pod.tolerates.contains("lease-3"));
        assert_eq!((pod.request.as_deref(), pod.lease.as_deref()), (Some("req-1"), Some("lease-3")));
        let plain = json!({ "containers": [{ "name": "c" }] });
        assert!(facts(json!({}), plain.clone(), json!({})).is_none());
        let gated = json!({ "containers": [{ "name": "c" }], "schedulingGates": [{ "name": GATE }] });
        assert!(facts(json!({}), gated, json!({})).unwrap().shape.is_err());
    }
}
