//! Calls on Liqo's objects as dynamic objects.

use comity_agent_kubernetes::call::{FIELD_MANAGER, call};
use comity_agent_model::delivery_error::DeliveryError;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};

/// Objects of a kind in a namespace.
pub(super) fn namespaced(client: &Client, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, kind)
}

/// Server-side apply: creates the object, or resets the given fields.
pub(super) async fn apply(api: &Api<DynamicObject>, object: &DynamicObject) -> Result<DynamicObject, DeliveryError> {
    let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    call(&format!("apply {kind} {name}"), api.patch(name, &parameters, &Patch::Apply(object))).await
}
