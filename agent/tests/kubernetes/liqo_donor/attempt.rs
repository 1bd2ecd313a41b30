//! One attempt of a consumer, how it is made and undone.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::consumer::Consumer;
use super::lab::{Lab, TENANT_NAMESPACE};

pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    /// Whether Liqo and RBAC alone allow it.
    pub(crate) open: bool,
    /// Part of the expected refusal.
    pub(crate) refusal: &'static str,
    pub(super) act: Act,
}

pub(super) enum Act {
    /// With the credential of the control plane.
    Create(fn(&Consumer) -> Value),
    /// A patch of the object of this kind and name, and the patch that reverts it.
    Merge { kind: fn() -> ApiResource, name: &'static str, status: bool, patch: Value, back: Value },
    /// The whole status, by PUT.
    PutStatus(Value),
    /// The status, by server-side apply.
    ApplyStatus(Value),
    /// With the credential of the slice.
    CreateWithSlice(Value),
}

impl Attempt {
    pub(crate) async fn make(&self, consumer: &Consumer) -> Result<DynamicObject, kube::Error> {
        match &self.act {
            Act::Create(object) => create(consumer.control_plane.clone(), object(consumer)).await,
            Act::CreateWithSlice(object) => create(consumer.slice_client(), object.clone()).await,
            Act::Merge { kind, name, status, patch, .. } => {
                let api =
                    Api::<DynamicObject>::namespaced_with(consumer.control_plane.clone(), TENANT_NAMESPACE, &kind());
                let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
                if *status {
                    api.patch_status(name, &parameters, &patch).await
                } else {
                    api.patch(name, &parameters, &patch).await
                }
            }
            Act::PutStatus(status) => loop {
                let mut slice = consumer.slices().get("lease-7").await?;
                slice.data["status"]["resources"] = status.clone();
                match consumer.slices().replace_status("lease-7", &PostParams::default(), &slice).await {
                    // The class controller has just reverted an earlier attempt.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    result => return result,
                }
            },
            Act::ApplyStatus(status) => {
                let object = json!({
                    "apiVersion": "authentication.liqo.io/v1beta1", "kind": "ResourceSlice",
                    "metadata": { "name": "lease-7" }, "status": { "resources": status },
                });
                let parameters = PatchParams::apply("consumer").force();
                consumer.slices().patch_status("lease-7", &parameters, &Patch::Apply(&object)).await
            }
        }
    }

    /// Reverts the attempt as an administrator, so that the next one starts from the same state.
    pub(crate) async fn undo(&self, lab: &Lab, consumer: &Consumer) {
        match &self.act {
            Act::Create(object) => delete(lab, &object(consumer)).await,
            Act::CreateWithSlice(object) => delete(lab, object).await,
            Act::Merge { status: true, .. } | Act::PutStatus(_) | Act::ApplyStatus(_) => {}
            Act::Merge { kind, name, back, .. } => {
                let api = Api::<DynamicObject>::namespaced_with(lab.admin.clone(), TENANT_NAMESPACE, &kind());
                api.patch(name, &PatchParams::default(), &Patch::Merge(back)).await.unwrap();
            }
        }
    }
}

fn api(client: Client, object: &Value) -> Api<DynamicObject> {
    let kind: GroupVersionKind =
        serde_json::from_value::<DynamicObject>(object.clone()).unwrap().types.unwrap().try_into().unwrap();
    let namespace = object["metadata"]["namespace"].as_str().unwrap();
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}

async fn create(client: Client, object: Value) -> Result<DynamicObject, kube::Error> {
    let typed = serde_json::from_value(object.clone()).unwrap();
    api(client, &object).create(&PostParams::default(), &typed).await
}

async fn delete(lab: &Lab, object: &Value) {
    let api = api(lab.admin.clone(), object);
    let name = object["metadata"]["name"].as_str().unwrap();
    if let Ok(Some(_)) = api.get_opt(name).await {
        let bare = json!({ "metadata": { "finalizers": null } });
        let _ = api.patch(name, &PatchParams::default(), &Patch::Merge(&bare)).await;
        let _ = api.delete(name, &DeleteParams::default().grace_period(0)).await;
        crate::cluster::eventually("it is gone", || async { api.get_opt(name).await.unwrap().is_none() }).await;
    }
}
