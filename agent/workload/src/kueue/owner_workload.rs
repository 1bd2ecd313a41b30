//! Whether the Workload of a ProvisioningRequest still runs.

use comity_agent_kubernetes::api::{CallError, within_limit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};

/// Whether a Workload has finished or is gone, or is another one by now. Its version is that of the reference: the agent
/// needs to know no version of Kueue's API.
///
/// # Errors
/// [`CallError`] if it cannot be read.
pub(super) async fn has_finished(
    client: &kube::Client,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<bool, CallError> {
    let types = TypeMeta { api_version: owner.api_version.clone(), kind: owner.kind.clone() };
    let Ok(kind) = GroupVersionKind::try_from(&types) else { return Ok(false) };
    let api = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::from_gvk_with_plural(&kind, "workloads"),
    );
    let found = within_limit(api.get_opt(&owner.name)).await?;
    Ok(found.is_none_or(|workload| workload.metadata.uid.as_ref() != Some(&owner.uid) || is_finished(&workload)))
}

fn is_finished(workload: &DynamicObject) -> bool {
    let conditions = workload.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Finished" && condition["status"] == "True")
}
