//! The webhooks' registrations at the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::https_server::Certificates;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::path_token::path_of;
use super::{Review, WebhookSettings};

/// Writes the wanted registration, and reverts changes by others.
pub(super) async fn ensure(
    client: &kube::Client,
    settings: &WebhookSettings,
    review: &dyn Review,
    certificates: &Certificates,
) -> Result<(), String> {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let apply = PatchParams::apply("comity-agent").force();
    let name = review.name();
    within_limit(api.patch(name, &apply, &Patch::Apply(&object(settings, review, certificates))))
        .await
        .map(drop)
        .map_err(|error| {
            format!("MutatingWebhookConfiguration {name} cannot be written: {error}; apply deploy/agent/webhook.yaml")
        })
}

/// Removes the registration of a webhook that is off.
pub async fn remove(client: &kube::Client, name: &str) {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    match within_limit(api.delete(name, &DeleteParams::default())).await {
        Ok(_) => tracing::info!(name, "the webhook is off: its registration was removed"),
        Err(CallError::Status(status)) if status.code == 404 || status.code == 403 => {}
        Err(error) => {
            tracing::warn!(name, %error, "the webhook is off, and its registration cannot be removed")
        }
    }
}

fn object(settings: &WebhookSettings, review: &dyn Review, certificates: &Certificates) -> Value {
    let path = path_of(review, certificates);
    let mut to = json!({ "caBundle": STANDARD.encode(&certificates.ca_pem) });
    if let Some(service) = &settings.service {
        to["service"] = json!({
            "namespace": service.namespace, "name": service.name, "port": service.port, "path": path,
        });
    } else {
        let base = settings.url.as_deref().unwrap_or_default().trim_end_matches('/');
        to["url"] = json!(format!("{base}{path}"));
    }
    let completed = |mut webhook: Value| {
        webhook["clientConfig"] = to.clone();
        webhook["admissionReviewVersions"] = json!(["v1"]);
        webhook["sideEffects"] = json!("None");
        webhook["matchPolicy"] = json!("Equivalent");
        webhook
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": review.name(), "labels": { "app.kubernetes.io/managed-by": "comity-agent" } },
        "webhooks": review.webhooks().into_iter().map(completed).collect::<Vec<_>>(),
    })
}
