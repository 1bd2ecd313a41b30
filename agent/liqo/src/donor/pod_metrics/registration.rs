//! Registers the metrics API at the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::{FIELD_MANAGER, MANAGED_BY};
use comity_agent_kubernetes::service_name::ServiceName;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

const API_SERVICE: &str = "v1beta1.metrics.liqo.io";

fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "apiservices"))
}

fn is_ours(object: &DynamicObject) -> bool {
    object.labels().get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1)
}

/// Registers the API, unless Liqo's own program has registered it.
pub(super) async fn ensure(client: &Client, service: &ServiceName, ca_pem: &str) -> Result<(), String> {
    let api = api(client);
    let failed = |what: &str, error: CallError| {
        format!("APIService {API_SERVICE} cannot be {what}: {error}; apply deploy/liqo/pod-metrics")
    };
    let found = within_limit(api.get_opt(API_SERVICE)).await.map_err(|error| failed("read", error))?;
    if found.is_some_and(|found| !is_ours(&found)) {
        return Err(format!(
            "APIService {API_SERVICE} is somebody else's, Liqo's metric-agent's probably: set its chart's metricAgent.enabled \
             to false"
        ));
    }
    let wanted = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": { "name": API_SERVICE, "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "spec": {
            "group": "metrics.liqo.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": STANDARD.encode(ca_pem),
            "service": { "namespace": service.namespace, "name": service.name, "port": service.port },
        },
    });
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    within_limit(api.patch(API_SERVICE, &apply, &Patch::Apply(&wanted)))
        .await
        .map(drop)
        .map_err(|error| failed("written", error))
}

/// Removes the registration if metrics are no longer served: an API without a server blocks the deletion of namespaces.
pub async fn remove(client: &Client) {
    let api = api(client);
    let removed = match within_limit(api.get_opt(API_SERVICE)).await {
        Ok(Some(found)) if is_ours(&found) => {
            within_limit(api.delete(API_SERVICE, &DeleteParams::default())).await.map(drop)
        }
        Ok(_) => return,
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => tracing::info!(name = API_SERVICE, "metrics of offloaded pods are off: their API was removed"),
        Err(CallError::Status(status)) if status.code == 404 || status.code == 403 => {}
        Err(error) => {
            tracing::warn!(name = API_SERVICE, %error, "metrics of offloaded pods are off, and their API cannot be removed")
        }
    }
}
