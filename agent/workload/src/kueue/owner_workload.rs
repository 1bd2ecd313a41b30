//! The Workload that a ProvisioningRequest is for.

use comity_agent_kubernetes::api::{CallError, within_limit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};

/// What a Workload still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadNeed {
    /// The capacity that was asked for.
    Capacity,
    /// Nothing now: Kueue evicted it or took its quota back. When it has quota again, Kueue asks again.
    NothingNow,
    /// Nothing any more: it has finished.
    Nothing,
}

/// Reads what a Workload needs. Its version is that of the reference, so that the agent depends on no version of Kueue's
/// API. One that cannot be found needs what it needed: the API server may not serve that version any more, and
/// garbage collection removes the ProvisioningRequest of one that is gone.
///
/// # Errors
/// [`CallError`] if it cannot be read.
pub(super) async fn read(
    client: &kube::Client,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<WorkloadNeed, CallError> {
    let types = TypeMeta { api_version: owner.api_version.clone(), kind: owner.kind.clone() };
    let Ok(kind) = GroupVersionKind::try_from(&types) else { return Ok(WorkloadNeed::Capacity) };
    let resource = ApiResource::from_gvk_with_plural(&kind, "workloads");
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let found = within_limit(api.get_opt(&owner.name)).await?;
    Ok(found.map_or(WorkloadNeed::Capacity, |workload| need_of(&workload)))
}

fn need_of(workload: &DynamicObject) -> WorkloadNeed {
    let holds = |type_: &str| {
        let mut conditions = workload.data["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == type_ && condition["status"] == "True")
    };
    if holds("Finished") {
        WorkloadNeed::Nothing
    } else if holds("Evicted") || !holds("QuotaReserved") {
        WorkloadNeed::NothingNow
    } else {
        WorkloadNeed::Capacity
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn need(conditions: &[(&str, &str)]) -> WorkloadNeed {
        let of = |(type_, status): &(&str, &str)| json!({ "type": type_, "status": status });
        let conditions: Vec<Value> = conditions.iter().map(of).collect();
        let mut workload = DynamicObject::new("w", &ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()));
        workload.data = json!({ "status": { "conditions": conditions } });
        need_of(&workload)
    }

    #[test]
    fn capacity_is_needed_while_quota_is_reserved() {
        let reserved = ("QuotaReserved", "True");
        assert_eq!(need(&[reserved]), WorkloadNeed::Capacity);
        assert_eq!(need(&[reserved, ("Evicted", "False")]), WorkloadNeed::Capacity);
        assert_eq!(need(&[reserved, ("Evicted", "True")]), WorkloadNeed::NothingNow);
        assert_eq!(need(&[("QuotaReserved", "False")]), WorkloadNeed::NothingNow);
        assert_eq!(need(&[]), WorkloadNeed::NothingNow);
        assert_eq!(need(&[reserved, ("Finished", "True")]), WorkloadNeed::Nothing);
    }
}
