//! The review that gives GPU pods of opted-in namespaces a scheduling gate, so that they can be pinned to a lease, and
//! access to their checkpoints. Pods already pinned to a lease get tolerations of its taints instead.
//!
//! Its failure policy is `Ignore`: without it pending pods get tolerations instead.

use comity_agent_model::node_service::NodeService;
use futures::future::BoxFuture;
use json_patch::Patch;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::checkpoint_store::checkpoint_steps;
use super::facts::demand::shape;
use super::facts::offload::obstacle;
use super::facts::pod::tolerated;
use super::facts::requested_stores::{RequestedStores, StoreOfPod};
use super::patch::add_tolerations;
use super::{CHECKPOINT_SECRET, GATE, LEASE, OFFLOAD_LABEL};
use crate::webhook::{Registration, Review};

/// Name of the registration.
pub const GATE_WEBHOOK: &str = "comity-burst";
/// A pod is not kept waiting longer than this.
const TIMEOUT_SECONDS: u32 = 2;
/// Only pods that ask for GPUs are sent, so that all others do not depend on the agent at all.
const ASKS_FOR_GPUS: &str = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, \
has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(name, \
name in ['nvidia.com/gpu', 'nvidia.com/gpu.shared', 'amd.com/gpu'] || name.startsWith('nvidia.com/mig-')))";

/// Gives pods the gate while this cluster can have virtual nodes.
pub struct GateReview {
    service: watch::Receiver<NodeService>,
    stores: watch::Receiver<RequestedStores>,
}

impl GateReview {
    /// A review for a cluster with this service, whose requests name these checkpoint stores.
    #[must_use]
    pub fn new(service: watch::Receiver<NodeService>, stores: watch::Receiver<RequestedStores>) -> Self {
        Self { service, stores }
    }
}

/// The registration: GPU pods of opted-in namespaces.
#[must_use]
pub fn gate_registration() -> Registration {
    let webhook = json!({
        "name": "burst.comity.dev",
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "namespaceSelector": { "matchLabels": { OFFLOAD_LABEL: "true" } },
        "matchConditions": [{ "name": "asks-for-gpus", "expression": ASKS_FOR_GPUS }],
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            "scope": "Namespaced",
        }],
    });
    Registration { name: GATE_WEBHOOK, path: "/gate", webhooks: vec![webhook] }
}

impl Review for GateReview {
    fn registration(&self) -> Registration {
        gate_registration()
    }

    fn answer<'a>(&'a self, body: &'a [u8]) -> BoxFuture<'a, Result<AdmissionReview<DynamicObject>, String>> {
        let answer = answer(body, self.service.borrow().borrows.is_ok(), &self.stores.borrow());
        Box::pin(async { answer })
    }
}

/// Answers a review. Every pod is admitted; the answer only says whether it gets the gate or tolerations, and its
/// checkpoint store. None does unless `holds`.
///
/// # Errors
/// A sentence, if the body is no review: the API server then admits the pod unchanged.
pub(super) fn answer(
    body: &[u8],
    holds: bool,
    stores: &RequestedStores,
) -> Result<AdmissionReview<DynamicObject>, String> {
    let review: AdmissionReview<Pod> =
        serde_json::from_slice(body).map_err(|error| format!("not a review of a pod: {error}"))?;
    let request: AdmissionRequest<Pod> = review.try_into().map_err(|_| "a review without a request".to_owned())?;
    let mut response = AdmissionResponse::from(&request);
    let wanted = request.object.as_ref().filter(|_| holds).and_then(|pod| Some((pod, wanted(pod)?)));
    if let Some((pod, wanted)) = wanted {
        let store = stores.of_pod(pod, request.namespace.as_deref().unwrap_or_default());
        if let StoreOfPod::Several(secrets) = store {
            response.warnings = Some(vec![format!(
                "requests of this namespace name the checkpoint Secrets {}; name one by the annotation \
                 {CHECKPOINT_SECRET}, or the pod gets none and bursts to none of their leases",
                secrets.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            )]);
        }
        let mut steps = match wanted {
            Wanted::Gate => gate_steps(pod),
            Wanted::Tolerations(lease) => toleration_steps(pod, lease),
        };
        steps.extend(store_steps(pod, store));
        if !steps.is_empty() {
            let patch: Patch = serde_json::from_value(Value::Array(steps)).expect("each is a step of a JSON patch");
            response = response.with_patch(patch).map_err(|error| error.to_string())?;
        }
    }
    Ok(response.into_review())
}

/// What a pod gets beside its checkpoint store.
#[derive(Clone, Copy)]
enum Wanted<'p> {
    /// The gate: it can burst and is not placed yet.
    Gate,
    /// Tolerations: its node selector names this lease.
    Tolerations(&'p str),
}

/// What a pod gets; `None` for one that stays here.
fn wanted(pod: &Pod) -> Option<Wanted<'_>> {
    let spec = pod.spec.as_ref()?;
    let kept_here = [&pod.metadata.labels, &pod.metadata.annotations]
        .into_iter()
        .flatten()
        .any(|map| map.get(OFFLOAD_LABEL).is_some_and(|text| text == "false"));
    let is_bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    let is_gated = spec.scheduling_gates.iter().flatten().any(|gate| gate.name == GATE);
    let asks = matches!(shape(pod), Some(Ok(_)));
    if !asks || kept_here || is_bound || is_gated || obstacle(pod).is_some() {
        return None;
    }
    let pinned = spec.node_selector.as_ref().and_then(|selector| selector.get(LEASE));
    Some(pinned.map_or(Wanted::Gate, |lease| Wanted::Tolerations(lease)))
}

fn toleration_steps(pod: &Pod, lease: &str) -> Vec<Value> {
    if tolerated(pod).contains(lease) {
        return Vec::new();
    }
    let has_tolerations = pod.spec.as_ref().is_some_and(|spec| spec.tolerations.is_some());
    add_tolerations(has_tolerations, lease)
}

fn gate_steps(pod: &Pod) -> Vec<Value> {
    let label = entry("/metadata/labels", pod.metadata.labels.is_some(), GATE, "true");
    let has_gates = pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.is_some());
    let gate = json!({ "name": GATE });
    let gate = if has_gates {
        json!({ "op": "add", "path": "/spec/schedulingGates/-", "value": gate })
    } else {
        json!({ "op": "add", "path": "/spec/schedulingGates", "value": [gate] })
    };
    vec![label, gate]
}

fn store_steps(pod: &Pod, store: StoreOfPod<'_>) -> Vec<Value> {
    match store {
        StoreOfPod::None | StoreOfPod::Several(_) => Vec::new(),
        StoreOfPod::Own(secret) => checkpoint_steps(pod, secret),
        StoreOfPod::Requested(secret) => {
            let annotation =
                entry("/metadata/annotations", pod.metadata.annotations.is_some(), CHECKPOINT_SECRET, secret);
            [vec![annotation], checkpoint_steps(pod, secret)].concat()
        }
    }
}

/// A step that sets an entry of a map, which may be absent.
fn entry(map: &str, is_present: bool, key: &str, value: &str) -> Value {
    if is_present {
        json!({ "op": "add", "path": format!("{map}/{}", key.replace('/', "~1")), "value": value })
    } else {
        json!({ "op": "add", "path": map, "value": { key: value } })
    }
}

/// A review of a pod, as the API server sends it.
#[cfg(test)]
pub(super) fn review_of(pod: &Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r", "operation": "CREATE", "name": "", "namespace": "team-a", "dryRun": false,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": {}, "object": pod,
        },
    });
    review.to_string().into_bytes()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::burst::LIQO_TAINT;

    fn reviewed(pod: Value) -> (bool, Option<Value>) {
        reviewed_where(pod, true)
    }

    fn reviewed_where(pod: Value, holds: bool) -> (bool, Option<Value>) {
        let response = response(pod, holds, &RequestedStores::default());
        (response.allowed, response.patch.map(|patch| serde_json::from_slice(&patch).unwrap()))
    }

    fn response(pod: Value, holds: bool, stores: &RequestedStores) -> AdmissionResponse {
        answer(&review_of(&pod), holds, stores).unwrap().response.unwrap()
    }

    fn pod(metadata: Value, extra: Value) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
        });
        for (key, value) in extra.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        pod
    }

    #[test]
    fn gpu_pods_get_gate_and_label() {
        let (allowed, patch) = reviewed(pod(json!({ "generateName": "p-" }), json!({})));
        assert!(allowed);
        let mut object = pod(json!({ "generateName": "p-" }), json!({}));
        json_patch::patch(&mut object, &serde_json::from_value::<Patch>(patch.unwrap()).unwrap()).unwrap();
        assert_eq!(object["spec"]["schedulingGates"], json!([{ "name": GATE }]));
        assert_eq!(object["metadata"]["labels"], json!({ GATE: "true" }));
        let labelled = json!({ "name": "p", "labels": { "app": "x" } });
        let (_, patch) = reviewed(pod(labelled, json!({ "schedulingGates": [{ "name": "other" }] })));
        let paths: Vec<_> = patch.unwrap().as_array().unwrap().iter().map(|step| step["path"].clone()).collect();
        assert_eq!(paths, ["/metadata/labels/comity.dev~1burst", "/spec/schedulingGates/-"]);
    }

    #[test]
    fn a_pod_that_names_a_checkpoint_store_gets_it_with_the_gate() {
        let named = |name: &str| json!({ "name": "p", "annotations": { CHECKPOINT_SECRET: name } });
        let paths = |metadata: Value| {
            let (_, patch) = reviewed(pod(metadata, json!({})));
            patch.unwrap().as_array().unwrap().iter().map(|step| step["path"].clone()).collect::<Vec<_>>()
        };
        let container = "/spec/containers/0";
        assert_eq!(
            paths(named("bucket"))[2..],
            ["/spec/volumes".to_owned(), format!("{container}/envFrom"), format!("{container}/volumeMounts")]
        );
        assert_eq!(paths(named("No Name")).len(), 2);
    }

    #[test]
    fn a_pod_gets_the_store_that_requests_of_its_namespace_name() {
        let bucket = RequestedStores::from_iter([("team-a", "bucket"), ("team-a", "bucket"), ("team-b", "other")]);
        let changed = |annotations: Value, stores: &RequestedStores| {
            let metadata = json!({ "name": "p", "annotations": annotations });
            let mut object = pod(metadata, json!({}));
            let response = response(object.clone(), true, stores);
            let patch: Patch = serde_json::from_slice(&response.patch.unwrap()).unwrap();
            json_patch::patch(&mut object, &patch).unwrap();
            let store = object["metadata"]["annotations"][CHECKPOINT_SECRET].as_str().map(str::to_owned);
            let from = object["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"].as_str().map(str::to_owned);
            assert!(response.warnings.is_none() || from.is_none());
            (store, from, response.warnings.unwrap_or_default().concat())
        };
        let of = |name: &str| (Some(name.to_owned()), Some(name.to_owned()), String::new());
        assert_eq!(changed(Value::Null, &bucket), of("bucket"));
        assert_eq!(changed(json!({ "a": "b" }), &bucket), of("bucket"));
        assert_eq!(changed(json!({ CHECKPOINT_SECRET: "own" }), &bucket), of("own"));
        let elsewhere = RequestedStores::from_iter([("team-b", "bucket")]);
        assert_eq!(changed(json!({ "a": "b" }), &elsewhere), (None, None, String::new()));
        let two = RequestedStores::from_iter([("team-a", "bucket"), ("team-a", "second")]);
        let (store, from, warning) = changed(json!({ "a": "b" }), &two);
        assert_eq!((store, from), (None, None));
        assert!(warning.contains("bucket, second") && warning.contains(CHECKPOINT_SECRET), "{warning}");
        assert_eq!(changed(json!({ CHECKPOINT_SECRET: "second" }), &two), of("second"));
    }

    #[test]
    fn a_pod_that_is_pinned_to_a_lease_gets_tolerations_and_the_store_without_the_gate() {
        let pinned = pod(json!({ "name": "p" }), json!({ "nodeSelector": { LEASE: "lease-1" } }));
        let bucket = RequestedStores::from_iter([("team-a", "bucket")]);
        let patch: Patch = serde_json::from_slice(&response(pinned.clone(), true, &bucket).patch.unwrap()).unwrap();
        let mut changed = pinned;
        json_patch::patch(&mut changed, &patch).unwrap();
        assert_eq!(changed["metadata"]["annotations"], json!({ CHECKPOINT_SECRET: "bucket" }));
        assert_eq!(changed["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"], "bucket");
        assert_eq!(changed["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], "/run/comity");
        assert!(changed["spec"].get("schedulingGates").is_none() && changed["metadata"].get("labels").is_none());
        assert_eq!(
            changed["spec"]["tolerations"],
            json!([
                { "key": LIQO_TAINT, "operator": "Exists", "effect": "NoExecute" },
                { "key": LEASE, "operator": "Equal", "value": "lease-1", "effect": "NoSchedule" },
            ])
        );
        assert_eq!(reviewed(pod(json!({ "name": "p" }), changed["spec"].clone())), (true, None));
    }

    #[test]
    fn pods_that_cannot_or_must_not_burst_are_admitted_unchanged() {
        for (metadata, extra) in [
            (json!({ "name": "p", "labels": { OFFLOAD_LABEL: "false" } }), json!({})),
            (json!({ "name": "p", "labels": { OFFLOAD_LABEL: "no" } }), json!({})),
            (json!({ "name": "p" }), json!({ "hostNetwork": true })),
            (json!({ "name": "p" }), json!({ "nodeName": "n" })),
            (json!({ "name": "p" }), json!({ "schedulingGates": [{ "name": GATE }] })),
            (json!({ "name": "p" }), json!({ "containers": [{ "name": "c" }] })),
        ] {
            assert_eq!(reviewed(pod(metadata, extra)), (true, None));
        }
        assert_eq!(reviewed_where(pod(json!({ "name": "p" }), json!({})), false), (true, None));
        let stores = RequestedStores::default();
        assert!(answer(b"{}", true, &stores).is_err() && answer(b"nonsense", true, &stores).is_err());
    }
}
