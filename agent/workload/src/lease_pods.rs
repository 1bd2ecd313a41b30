//! The review that completes pods of leases, so that workloads run there unchanged.
//!
//! - In a lease on several nodes, by either delivery, each container requests as many units of the lease's own resource
//!   as GPUs: each node has as many as the lease has GPUs there, while the quota counts the whole lease.
//! - Where a DRA driver has the GPUs, a request for a number of GPUs becomes claims of the lease's devices.
//! - Where HAMi shares the GPUs, containers get the limits of the lease's share, and the pod its devices.
//! - Where the donor runs guests under a RuntimeClass, pods name it.
//! - Unless the donor's configuration says otherwise, containers that request no NVIDIA GPU get
//!   `NVIDIA_VISIBLE_DEVICES=void`, because their image may ask for all, and all get `imagePullPolicy: Always`.
//!
//! Apart from that it only adds what a pod leaves out. Quotas and the policies in `deploy/agent/` refuse every other value, so its
//! failure policy is `Ignore`: without the agent an incomplete pod is refused, and a complete one is not.

mod claims_in_use;
mod completion;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::gpu_resource::LEASE_RESOURCE_PREFIX;
use comity_agent_liqo::REMOTE_CLUSTER_LABEL;
use comity_agent_model::guest_labels::{ALWAYS_PULL_LABEL, RUNTIME_CLASS_LABEL, VOID_DEVICES_LABEL};
use comity_agent_model::lease::lease_id::{LEASE_LABEL, lease_of_namespace};
use comity_runtime::Clock;
use futures::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use self::claims_in_use::ChosenClaims;
use self::completion::{LeaseTerms, complete};
use crate::webhook::{Registration, Review};

/// Name of the registration.
pub const LEASE_PODS_WEBHOOK: &str = "comity-lease-pods";
/// Longest wait of a pod for the agent.
const COMPLETION_TIMEOUT_SECONDS: u32 = 5;
/// How long a chosen claim counts as used before a list shows its pod.
const CHOSEN_FOR: Duration = Duration::from_secs(10);

/// Completes pods of leases.
pub struct LeasePodsReview {
    client: Client,
    clock: Arc<dyn Clock>,
    chosen: Mutex<ChosenClaims>,
}

impl LeasePodsReview {
    /// A review for the cluster of `client`.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, chosen: Mutex::default() }
    }

    async fn reviewed(&self, body: &[u8]) -> Result<AdmissionReview<DynamicObject>, String> {
        let review: AdmissionReview<Pod> =
            serde_json::from_slice(body).map_err(|error| format!("not a review of a pod: {error}"))?;
        let request: AdmissionRequest<Pod> = review.try_into().map_err(|_| "a review without a request".to_owned())?;
        let mut response = AdmissionResponse::from(&request);
        if let (Some(pod), Some(namespace)) = (&request.object, &request.namespace) {
            response = match self.completed(namespace, pod, request.dry_run).await? {
                Ok(pod) => {
                    response.with_patch(difference(request.object.as_ref(), &pod)?).map_err(|e| e.to_string())?
                }
                Err(reason) => forbidden(response, reason),
            };
        }
        Ok(response.into_review())
    }

    /// The completed pod, or why it cannot be one now.
    async fn completed(&self, namespace: &str, pod: &Pod, is_dry_run: bool) -> Result<Result<Pod, String>, String> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let found = within_limit(namespaces.get_metadata(namespace))
            .await
            .map_err(|error| format!("namespace {namespace} cannot be read: {error}"))?;
        let none = Default::default();
        let annotations = found.metadata.annotations.as_ref().unwrap_or(&none);
        let labels = found.metadata.labels.as_ref().unwrap_or(&none);
        let terms = match lease_of_namespace(namespace) {
            Some(lease) => LeaseTerms::of_lease(lease, labels, annotations),
            None => LeaseTerms::of_guest(pod, labels),
        };
        let mut pod = pod.clone();
        if terms.has_claims && completion::requested_gpus(&pod) > 0 {
            let mut chosen = self.chosen.lock().await;
            let now = self.clock.elapsed();
            let names = chosen.choose(&self.client, namespace, &pod, now).await?;
            let Some(names) = names else {
                return Ok(Err("no node of the lease has that many GPUs that no other pod of the lease uses; delete \
                    such a pod, or create this one when it has finished"
                    .to_owned()));
            };
            completion::claim(&mut pod, &names);
            if !is_dry_run {
                chosen.note(namespace, names, now + CHOSEN_FOR);
            }
        }
        complete(&mut pod, &terms);
        Ok(Ok(pod))
    }
}

fn forbidden(response: AdmissionResponse, reason: String) -> AdmissionResponse {
    let mut refused = response.deny(reason);
    refused.result.code = StatusCode::FORBIDDEN.as_u16();
    refused
}

/// The steps from one pod to the other.
fn difference(before: Option<&Pod>, after: &Pod) -> Result<json_patch::Patch, String> {
    let json = |pod: Option<&Pod>| serde_json::to_value(pod).map_err(|error| error.to_string());
    Ok(json_patch::diff(&json(before)?, &json(Some(after))?))
}

/// The registration: pods of leases and other guests. It is the same whatever the agent's configuration: the agent
/// labels the namespaces.
#[must_use]
pub fn lease_pods_registration() -> Registration {
    let webhook = |name: &str, selectors: Value, conditions: Value| {
        json!({
            "name": name,
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "timeoutSeconds": COMPLETION_TIMEOUT_SECONDS,
            "namespaceSelector": { "matchExpressions": selectors },
            "matchConditions": conditions,
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                "scope": "Namespaced",
            }],
        })
    };
    let leases = json!([{ "key": LEASE_LABEL, "operator": "Exists" }]);
    let remote = json!([
        { "key": LEASE_LABEL, "operator": "DoesNotExist" },
        { "key": REMOTE_CLUSTER_LABEL, "operator": "Exists" },
    ]);
    let on_several_nodes = json!([{
        "name": "selects-nodes-of-a-lease",
        "expression": format!(
            "object.spec.?nodeSelector.orValue({{}}).exists(key, key.startsWith('{LEASE_RESOURCE_PREFIX}'))"
        ),
    }]);
    // No pod is sent twice.
    let with_void_devices = json!([
        { "key": LEASE_LABEL, "operator": "DoesNotExist" },
        { "key": VOID_DEVICES_LABEL, "operator": "In", "values": ["true"] },
    ]);
    let with_runtime_class = json!([
        { "key": LEASE_LABEL, "operator": "DoesNotExist" },
        { "key": VOID_DEVICES_LABEL, "operator": "NotIn", "values": ["true"] },
        { "key": RUNTIME_CLASS_LABEL, "operator": "Exists" },
    ]);
    let with_pulled_images = json!([
        { "key": LEASE_LABEL, "operator": "DoesNotExist" },
        { "key": VOID_DEVICES_LABEL, "operator": "NotIn", "values": ["true"] },
        { "key": RUNTIME_CLASS_LABEL, "operator": "DoesNotExist" },
        { "key": ALWAYS_PULL_LABEL, "operator": "In", "values": ["true"] },
    ]);
    let webhooks = vec![
        webhook("lease-pods.comity.dev", leases, json!([])),
        webhook("virtual-node-pods.comity.dev", remote, on_several_nodes),
        webhook("guest-pods.comity.dev", with_void_devices, json!([])),
        webhook("runtime-class-pods.comity.dev", with_runtime_class, json!([])),
        webhook("pulled-pods.comity.dev", with_pulled_images, json!([])),
    ];
    Registration { name: LEASE_PODS_WEBHOOK, path: "/lease-pods", webhooks }
}

impl Review for LeasePodsReview {
    fn registration(&self) -> Registration {
        lease_pods_registration()
    }

    fn answer<'a>(&'a self, body: &'a [u8]) -> BoxFuture<'a, Result<AdmissionReview<DynamicObject>, String>> {
        Box::pin(self.reviewed(body))
    }
}
