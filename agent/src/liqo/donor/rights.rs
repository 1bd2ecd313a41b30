//! Calls on Liqo's objects, whose types are known to the API server only.

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::delivery::DeliveryError;
use crate::delivery::call::{FIELD_MANAGER, call};

/// The manifest that gives the rights used here.
const MANIFEST: &str = "deploy/agent/liqo-donor.yaml";

/// Objects of a kind in a namespace.
pub(crate) fn namespaced(client: &Client, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, kind)
}

/// Makes the object, or sets the fields given here back to what they must be.
pub(crate) async fn apply(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, DeliveryError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    rights(call(&format!("apply {kind} {name}"), api.patch(name, &parameters, &Patch::Apply(object))).await)
}

/// Names the manifest that has the rights, where rights are missing.
pub(crate) fn rights<T>(result: Result<T, DeliveryError>) -> Result<T, DeliveryError> {
    result.map_err(|error| match error {
        DeliveryError::Permanent { code: "kubernetes-forbidden", message } => {
            DeliveryError::permanent("kubernetes-forbidden", message.replace("deploy/agent/rbac.yaml", MANIFEST))
        }
        other => other,
    })
}
