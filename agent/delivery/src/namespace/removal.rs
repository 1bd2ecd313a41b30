//! Removes a lease's namespace, waits until it is gone, and takes the lease's resource from its nodes.

use std::time::Duration;

use comity_agent_kubernetes::call::{call, call_opt};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::namespace_name;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::{NamespaceDelivery, check_owner, objects};

/// How long one call waits until the namespace is gone; the caller retries. Pods get 30 s to end.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(90);
/// Grace period of a tenant's pods, which replaces their own: the lease is over.
const POD_GRACE_SECONDS: u32 = 30;
/// Most pods that an error names.
const MAX_NAMED: u32 = 8;
const POLL: Duration = Duration::from_millis(250);

impl NamespaceDelivery {
    /// Removes the rights first, then all objects; returns when nothing is left.
    pub(super) async fn take_down(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        self.remove_namespace(lease_id).await?;
        self.nodes.close_to(lease_id).await
    }

    async fn remove_namespace(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let name = namespace_name(lease_id);
        let read = format!("read namespace {name}");
        let Some(namespace) = call_opt(&read, self.namespaces().get(&name)).await? else { return Ok(()) };
        if check_owner(namespace.labels(), lease_id).is_err() {
            // Not ours: nothing of this lease is here.
            tracing::warn!(
                namespace = name,
                lease = %lease_id,
                "a namespace of this name was not made by Comity; it is left alone"
            );
            return Ok(());
        }
        self.revoke(lease_id).await?;
        if namespace.metadata.deletion_timestamp.is_none() {
            // The UID protects a namespace of this name that somebody else made meanwhile.
            let preconditions = Preconditions { uid: namespace.uid(), resource_version: None };
            let parameters = DeleteParams::background().preconditions(preconditions);
            call_opt(&format!("delete namespace {name}"), self.namespaces().delete(&name, &parameters)).await?;
        }
        // No new pod can start; running ones may have a grace period of hours.
        let soon = DeleteParams::default().grace_period(POD_GRACE_SECONDS);
        let pods = self.namespaced::<Pod>(lease_id);
        call(&format!("end the pods of {name}"), pods.delete_collection(&soon, &ListParams::default())).await?;
        self.await_gone(&namespace).await
    }

    /// Voids every credential at once: deletes the Secret that the tokens are bound to, the rights, and the account,
    /// whose deletion also voids tokens that the tenant made.
    async fn revoke(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let now = DeleteParams::background().grace_period(0);
        call_opt("revoke the tenant's token", self.namespaced::<Secret>(lease_id).delete(objects::TOKEN_SECRET, &now))
            .await?;
        call_opt(
            "revoke the tenant's rights",
            self.namespaced::<RoleBinding>(lease_id).delete(objects::ROLE_BINDING, &now),
        )
        .await?;
        call_opt(
            "delete the tenant's account",
            self.namespaced::<ServiceAccount>(lease_id).delete(objects::SERVICE_ACCOUNT, &now),
        )
        .await?;
        Ok(())
    }

    async fn await_gone(&self, namespace: &Namespace) -> Result<(), DeliveryError> {
        let name = namespace.name_any();
        let operation = format!("wait for namespace {name} to be gone");
        let began = self.clock.elapsed();
        loop {
            match call_opt(&operation, self.namespaces().get(&name)).await? {
                None => return Ok(()),
                Some(now) if now.uid() != namespace.uid() => return Ok(()),
                Some(now) if self.clock.elapsed().saturating_sub(began) > REMOVAL_TIMEOUT => {
                    let pods = self.pods_with_finalizers(&name).await?;
                    return Err(DeliveryError::temporary(operation, remaining_objects(&now, &pods)));
                }
                Some(_) => self.clock.sleep(POLL).await,
            }
        }
    }

    async fn pods_with_finalizers(&self, namespace: &str) -> Result<Vec<String>, DeliveryError> {
        let pods = Api::<Pod>::namespaced(self.api.client(), namespace);
        let left =
            call(&format!("list the pods of {namespace}"), pods.list(&ListParams::default().limit(MAX_NAMED))).await?;
        let named = |pod: &Pod| {
            (!pod.finalizers().is_empty()).then(|| {
                format!(
                    "pod {} has the finalizer {}, which nobody removed",
                    pod.name_any(),
                    pod.finalizers().join(", ")
                )
            })
        };
        Ok(left.items.iter().filter_map(named).collect())
    }
}

/// The remaining objects that the namespace controller reports, or the pods whose finalizers nobody removed.
fn remaining_objects(namespace: &Namespace, pods: &[String]) -> String {
    let conditions = namespace.status.as_ref().and_then(|status| status.conditions.as_ref());
    let reported = conditions.into_iter().flatten().filter(|condition| condition.status == "True");
    let left: Vec<&str> =
        reported.filter_map(|condition| condition.message.as_deref()).chain(pods.iter().map(String::as_str)).collect();
    if left.is_empty() {
        return format!("still there after {} s; is kube-controller-manager running?", REMOVAL_TIMEOUT.as_secs());
    }
    left.join("; ")
}
