//! The webhook's registration at the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::{CallError, within_limit};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::super::OFFLOAD_LABEL;
use super::super::settings::WebhookSettings;

/// Name of the configuration.
pub(super) const NAME: &str = "comity-burst";
/// A pod is not kept waiting longer than this.
const TIMEOUT_SECONDS: u32 = 2;
/// Only pods that ask for GPUs are sent, so that all others do not depend on the agent at all.
const ASKS_FOR_GPUS: &str = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, \
has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(name, \
name == 'nvidia.com/gpu' || name == 'amd.com/gpu' || name.startsWith('nvidia.com/mig-')))";

/// Writes the wanted configuration, and reverts changes by others.
pub(super) async fn ensure(client: &kube::Client, settings: &WebhookSettings, ca_pem: &str) -> Result<(), String> {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let apply = PatchParams::apply("comity-agent").force();
    within_limit(api.patch(NAME, &apply, &Patch::Apply(&object(settings, ca_pem)))).await.map(drop).map_err(|error| {
        format!("MutatingWebhookConfiguration {NAME} cannot be written: {error}; apply deploy/agent/burst.yaml")
    })
}

/// Removes the configuration if the webhook is off. One that cannot be read is left: it fails open.
pub async fn remove(client: &kube::Client) {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    match within_limit(api.delete(NAME, &DeleteParams::default())).await {
        Ok(_) => tracing::info!(name = NAME, "the webhook is off: its configuration was removed"),
        Err(CallError::Status(status)) if status.code == 404 || status.code == 403 => {}
        Err(error) => {
            tracing::warn!(name = NAME, %error, "the webhook is off, and its configuration cannot be removed")
        }
    }
}

fn object(settings: &WebhookSettings, ca_pem: &str) -> Value {
    let mut to = json!({ "caBundle": STANDARD.encode(ca_pem) });
    if let Some(service) = &settings.service {
        to["service"] = json!({
            "namespace": service.namespace, "name": service.name, "port": service.port, "path": "/gate",
        });
    } else {
        to["url"] = json!(settings.url);
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": NAME, "labels": { "app.kubernetes.io/managed-by": "comity-agent" } },
        "webhooks": [{
            "name": "burst.comity.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "Never",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "clientConfig": to,
            "namespaceSelector": { "matchLabels": { OFFLOAD_LABEL: "true" } },
            "matchConditions": [{ "name": "asks-for-gpus", "expression": ASKS_FOR_GPUS }],
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced",
            }],
        }],
    })
}
