//! Fuzzes what the agent reads from pods and namespaces, whose owners write them, and what it would change in them.

use comity_fuzz::fuzz;
use json_patch::Patch;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::PartialObjectMeta;
use kube::core::admission::AdmissionReview;
use serde_json::{Value, json};

use super::namespace::rules;
use super::pod::PodFacts;
use super::requested_stores::RequestedStores;
use crate::burst::gate_review::{answer, review_of};
use crate::burst::patch::{assign, pin, tolerate, ungate};
use crate::burst::settings::BurstSettings;
use crate::burst::{
    CHECKPOINT_SECRET, CLASS, COOLDOWN, GATE, GPU_SHARE, LEASE, LIQO_TAINT, OFFLOAD_LABEL, TENANT_LABEL,
};

fn applies(patch: &Patch, object: &Value) {
    let mut object = object.clone();
    let applied = json_patch::patch(&mut object, patch);
    assert!(applied.is_ok(), "the API server would refuse {patch:?}: {applied:?}");
    let pod: Result<Pod, _> = serde_json::from_value(object);
    assert!(pod.is_ok(), "{patch:?} makes something that is no pod: {:?}", pod.err());
}

/// Whether a review could be answered. A patch that does not apply keeps the pod from being made.
fn is_answered(body: &[u8], object: &Value, stores: &RequestedStores) -> bool {
    let Ok(review) = answer(body, true, stores) else { return false };
    let response = review.response.expect("an answer");
    assert!(response.allowed, "every pod is admitted");
    if let Some(patch) = response.patch {
        applies(&serde_json::from_slice(&patch).expect("a JSON patch"), object);
    }
    true
}

#[test]
fn pods_and_namespaces() {
    let container = json!({
        "name": "c", "envFrom": [{ "secretRef": { "name": "s" } }],
        "resources": { "limits": { "nvidia.com/gpu": "2", "cpu": "1500m", "memory": "16Gi" }, "requests": { "cpu": "1e3m" } },
    });
    let pod = json!({
        "metadata": {
            "name": "p", "namespace": "team-a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "scheduling.x-k8s.io/pod-group": "ring" },
            "annotations": { GPU_SHARE: "0.25", CHECKPOINT_SECRET: "bucket", "comity.dev/preemptible-grace": "10m" },
            "ownerReferences": [{ "kind": "Job", "apiVersion": "batch/v1", "name": "o", "uid": "u", "controller": true }],
        },
        "spec": {
            "containers": [container, { "name": "d" }],
            "initContainers": [{ "name": "i", "restartPolicy": "Always", "resources": { "requests": { "memory": "1Ki" } } }],
            "overhead": { "memory": "64Mi" }, "schedulingGates": [{ "name": "other" }],
            "tolerations": [{ "key": LIQO_TAINT, "operator": "Exists" }, { "key": LEASE, "value": "lease-1" }],
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "volumes": [{ "name": "v", "emptyDir": {} }],
        },
        "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False" }] },
    });
    let plain = json!({
        "metadata": { "name": "p", "namespace": "team-a", "uid": "u" },
        "spec": {
            "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/mig-1g.10gb.me": "1" } } }],
            "schedulingGates": [{ "name": GATE }],
        },
    });
    let namespace = json!({ "metadata": {
        "name": "team-a", "labels": { OFFLOAD_LABEL: "true", TENANT_LABEL: "vision", CLASS: "frontier" },
        "annotations": { COOLDOWN: "90s", GPU_SHARE: "0.5" },
    } });
    let stores = RequestedStores::from_iter([("team-a", "bucket")]);
    let mut valid: Vec<Vec<u8>> = [&pod, &plain, &namespace].map(|object| object.to_string().into_bytes()).to_vec();
    valid.push(review_of(&pod));
    fuzz!("burst_pod", valid, move |bytes: &[u8]| {
        if let Ok(namespace) = serde_json::from_slice::<PartialObjectMeta<Namespace>>(bytes) {
            let _ = rules(&namespace, &BurstSettings::default());
        }
        let sent: Result<AdmissionReview<Pod>, _> = serde_json::from_slice(bytes);
        let sent = sent.ok().and_then(|review| review.request).and_then(|request| request.object);
        if let Some(pod) = &sent {
            is_answered(bytes, &serde_json::to_value(pod).expect("JSON"), &stores);
        }
        let Ok(pod) = serde_json::from_slice::<Pod>(bytes) else { return sent.is_some() };
        // An API server sends what it read, not what its client wrote.
        let object = serde_json::to_value(&pod).expect("JSON");
        assert!(is_answered(&review_of(&object), &object, &stores), "a review of a pod that the API server sent");
        if let Some(facts) = PodFacts::of(&pod) {
            let patches = [pin(&facts, "lease-1", "req-1"), tolerate(&facts, "lease-1", "req-1")];
            for patch in patches.iter().chain(&[ungate(&facts), assign(&facts, "req-1")]) {
                applies(patch, &object);
            }
        }
        true
    });
}
