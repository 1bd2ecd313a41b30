//! The review that completes pods of leases.
//!
//! - In the namespaces of leases on several nodes: a quota counts the GPUs of a whole namespace. So that no node gives
//!   more than its part, each node of the lease has as many units of a resource of the lease's own as the lease has GPUs
//!   there, and each container requests as many units as GPUs.
//! - Where the donor runs guests under a RuntimeClass: pods get its name.
//!
//! It only adds to pods that leave these out. Policies in deploy/agent/admission.yaml refuse every other value, also
//! without the agent.

use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, counts_gpus};
use comity_agent_kubernetes::pod_request::amounts;
use comity_agent_model::lease_id::{RUNTIME_CLASS_LABEL, lease_of_namespace};
use json_patch::{AddOperation, Patch, PatchOperation};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};

use crate::webhook::Review;

/// Name of the registration.
pub const LEASE_PODS_WEBHOOK: &str = "comity-lease-pods";
/// Label of the namespaces of leases on several nodes.
pub const LEASE_NODES_LABEL: &str = "comity.dev/lease-nodes";
const TIMEOUT_SECONDS: u32 = 5;

/// Completes pods of leases.
#[derive(Clone, Debug, Default)]
pub struct LeasePodsReview {
    /// RuntimeClass of guests, if the donor has one for them.
    pub runtime_class: Option<String>,
}

impl Review for LeasePodsReview {
    fn name(&self) -> &'static str {
        LEASE_PODS_WEBHOOK
    }

    fn path(&self) -> &'static str {
        "/lease-pods"
    }

    fn webhooks(&self) -> Vec<Value> {
        let webhook = |name: &str, selector: Value| {
            json!({
                "name": name,
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": TIMEOUT_SECONDS,
                "namespaceSelector": { "matchExpressions": [selector] },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                    "scope": "Namespaced",
                }],
            })
        };
        let several = json!({ "key": LEASE_NODES_LABEL, "operator": "In", "values": ["several"] });
        let mut webhooks = vec![webhook("lease-pods.comity.dev", several)];
        if let Some(class) = &self.runtime_class {
            let guests = json!({ "key": RUNTIME_CLASS_LABEL, "operator": "In", "values": [class] });
            webhooks.push(webhook("guest-pods.comity.dev", guests));
        }
        webhooks
    }

    fn answer(&self, body: &[u8]) -> Result<AdmissionReview<DynamicObject>, String> {
        let review: AdmissionReview<Pod> =
            serde_json::from_slice(body).map_err(|error| format!("not a review of a pod: {error}"))?;
        let request: AdmissionRequest<Pod> = review.try_into().map_err(|_| "a review without a request".to_owned())?;
        let mut response = AdmissionResponse::from(&request);
        if let Some(pod) = &request.object {
            let lease = request.namespace.as_deref().and_then(lease_of_namespace);
            let mut steps = lease.map(|lease| counted(pod, &format!("{LEASE_GPUS_PREFIX}{lease}"))).unwrap_or_default();
            steps.extend(self.runtime_class.as_deref().and_then(|class| classed(pod, class)));
            response = response.with_patch(Patch(steps)).map_err(|error| error.to_string())?;
        }
        Ok(response.into_review())
    }
}

/// Gives each container that requests GPUs as many units of `resource`, unless it states an amount.
fn counted(pod: &Pod, resource: &str) -> Vec<PatchOperation> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let lists = [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ];
    let steps = lists.into_iter().flat_map(|(list, containers)| {
        containers.iter().enumerate().filter_map(move |(index, container)| {
            let gpus = gpus_of(container, resource)?;
            let key = resource.replace('/', "~1");
            let path = format!("/spec/{list}/{index}/resources/limits/{key}");
            // `requests` may be absent; the API server sets it to the limit.
            Some(PatchOperation::Add(AddOperation { path: path.parse().ok()?, value: json!(gpus.to_string()) }))
        })
    });
    steps.collect()
}

/// Names the RuntimeClass in a pod without one.
fn classed(pod: &Pod, class: &str) -> Option<PatchOperation> {
    let is_named = pod.spec.as_ref()?.runtime_class_name.is_some();
    let path = "/spec/runtimeClassName".parse().ok()?;
    (!is_named).then(|| PatchOperation::Add(AddOperation { path, value: json!(class) }))
}

/// GPUs of a container that does not state `resource`; `None` for other containers.
fn gpus_of(container: &Container, resource: &str) -> Option<u64> {
    let resources = container.resources.as_ref()?;
    let limits = resources.limits.as_ref()?;
    let is_stated = limits.contains_key(resource)
        || resources.requests.as_ref().is_some_and(|requests| requests.contains_key(resource));
    let gpus = amounts(limits)
        .iter()
        .filter(|(name, _)| counts_gpus(name))
        .fold(0, |sum: u64, (_, amount)| sum.saturating_add(*amount));
    (gpus > 0 && !is_stated).then_some(gpus)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn reviewed(namespace: &str, spec: Value) -> (bool, Value) {
        reviewed_by(&LeasePodsReview::default(), namespace, spec)
    }

    fn reviewed_by(by: &LeasePodsReview, namespace: &str, spec: Value) -> (bool, Value) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "r", "operation": "CREATE", "name": "", "namespace": namespace, "dryRun": false,
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "userInfo": {}, "object": { "apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec },
            },
        });
        let response = by.answer(review.to_string().as_bytes()).unwrap().response.unwrap();
        let mut pod = json!({ "spec": spec });
        let patch: Patch = serde_json::from_slice(&response.patch.unwrap_or(b"[]".to_vec())).unwrap();
        json_patch::patch(&mut pod, &patch).unwrap();
        (response.allowed, pod["spec"].clone())
    }

    fn container(limits: Value) -> Value {
        json!({ "name": "c", "resources": { "limits": limits } })
    }

    #[test]
    fn each_container_requests_as_many_units_as_gpus() {
        let spec = json!({
            "containers": [container(json!({ "nvidia.com/gpu": "2" })), container(json!({ "cpu": "1" })), { "name": "d" }],
            "initContainers": [container(json!({ "nvidia.com/mig-1g.10gb": 3 }))],
        });
        let (allowed, spec) = reviewed("comity-lease-7", spec);
        let limits = |list: &str, index: usize| spec[list][index]["resources"]["limits"].clone();
        assert!(allowed);
        assert_eq!(limits("containers", 0), json!({ "nvidia.com/gpu": "2", "gpus.lease.comity.dev/lease-7": "2" }));
        assert_eq!(limits("initContainers", 0)["gpus.lease.comity.dev/lease-7"], "3");
        assert_eq!(limits("containers", 1), json!({ "cpu": "1" }));
    }

    #[test]
    fn a_stated_amount_stays_and_the_policy_judges_it() {
        let stated = json!({ "nvidia.com/gpu": "2", "gpus.lease.comity.dev/lease-7": "1" });
        let (_, spec) = reviewed("comity-lease-7", json!({ "containers": [container(stated.clone())] }));
        assert_eq!(spec["containers"][0]["resources"]["limits"], stated);
        let (_, spec) = reviewed("elsewhere", json!({ "containers": [container(json!({ "nvidia.com/gpu": "2" }))] }));
        assert_eq!(spec["containers"][0]["resources"]["limits"], json!({ "nvidia.com/gpu": "2" }));
        assert!(LeasePodsReview::default().answer(b"{}").is_err());
    }

    #[test]
    fn guests_get_the_runtime_class() {
        let by = LeasePodsReview { runtime_class: Some("gvisor".to_owned()) };
        let (_, spec) = reviewed_by(&by, "team-a-origin", json!({ "containers": [] }));
        assert_eq!(spec["runtimeClassName"], "gvisor");
        let (_, spec) = reviewed_by(&by, "comity-lease-7", json!({ "containers": [], "runtimeClassName": "runc" }));
        assert_eq!(spec["runtimeClassName"], "runc", "the policy judges it");
        assert_eq!((by.webhooks().len(), LeasePodsReview::default().webhooks().len()), (2, 1));
    }
}
