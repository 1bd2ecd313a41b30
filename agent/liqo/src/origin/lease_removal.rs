//! Removes leases and peerings in an order in which Liqo leaves no finalizer behind.
//!
//! A donor that does not answer would hold finalizers forever: after a bounded wait it is marked as gone, and its own
//! agent cleans up there.

use std::time::Duration;

use comity_agent_kubernetes::call::{call, call_opt, patching};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_types::LeaseId;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, Preconditions};
use kube::core::DynamicObject;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::objects::{self, HeldSlice};
use super::{LiqoOrigin, check};
use crate::{
    LiqoPeer, PEERING_LABEL, foreign_cluster, identity, namespace_offloading, renew, resource_slice, virtual_node,
    waiting::Waiting,
};

/// Liqo's mark of a cluster that will not come back; it counts only while the cluster does not answer.
const GONE: &str = "liqo.io/foreign-cluster-permanently-unreachable";
/// How long objects may take to disappear after the donor confirmed, or was marked as gone: Liqo retries the
/// NamespaceOffloadings of a marked donor with growing pauses; observed: 20 to 60 s.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(90);
/// Poll interval for the pods of a node, which are a list and not one object.
const POLL: Duration = Duration::from_millis(250);

/// Waits until no object of this name exists.
pub(super) async fn wait_gone<K>(api: &Api<K>, name: &str, what: &str, patience: Duration) -> Result<(), DeliveryError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let operation = format!("wait for {what} {name} to be gone");
    Waiting { operation: &operation, hint: "", patience }.gone(api, name, None).await
}

impl LiqoOrigin {
    /// Ends a lease here and returns when nothing runs under it any more; idempotent, and also without the donor. An
    /// empty virtual node may stay for the next lease of the same peering.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn remove(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let found = match self.slice_of(lease_id).await? {
            Some(slice) => Some(slice),
            // The slice was removed before this agent saw the other objects go.
            None => self.virtual_node_of(lease_id).await?,
        };
        let Some(held) = found.as_ref().map(HeldSlice::of) else { return Ok(()) };
        let is_empty = self.drain(&held, &lease_id.to_string()).await?;
        if !(is_empty && self.keep_idle(&held).await?) {
            self.take_down(&held).await?;
        }
        self.publish_node_namespaces().await
    }

    /// Removes a slice with its dependent objects.
    async fn take_down(&self, held: &HeldSlice) -> Result<(), DeliveryError> {
        let offer_stays = match &held.target {
            Some(target) => self.withdraw_offer(&held.slice, target, &held.donor).await?,
            None => false,
        };
        self.delete_slice(held).await?;
        if let Some(target) = held.target.as_deref().filter(|_| offer_stays) {
            let offloadings = self.namespaced(target, &namespace_offloading());
            wait_gone(&offloadings, objects::OFFLOADING, "NamespaceOffloading", REMOVAL_TIMEOUT).await?;
        }
        self.unmark(&held.donor).await
    }

    async fn virtual_node_of(&self, lease_id: LeaseId) -> Result<Option<DynamicObject>, DeliveryError> {
        let nodes = self.cluster_wide(&virtual_node());
        let of_lease = ListParams::default().labels(&format!("{LEASE_LABEL}={lease_id}")).limit(1);
        Ok(call("list the VirtualNodes of leases", nodes.list(&of_lease)).await?.items.into_iter().next())
    }

    /// Deletes the slice; Liqo removes its dependent objects.
    async fn delete_slice(&self, held: &HeldSlice) -> Result<(), DeliveryError> {
        let (slice, tenant) = (held.slice.as_str(), held.tenant.as_str());
        let slices = self.namespaced(tenant, &resource_slice());
        self.delete(&slices, slice, "ResourceSlice", &held.donor).await?;
        wait_gone(&self.namespaced(tenant, &virtual_node()), slice, "VirtualNode", REMOVAL_TIMEOUT).await?;
        wait_gone(&Api::<Node>::all(self.client.clone()), slice, "Node", REMOVAL_TIMEOUT).await?;
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), tenant);
        wait_gone(&deployments, &format!("vk-{slice}"), "Deployment", REMOVAL_TIMEOUT).await?;
        let identities = self.namespaced(tenant, &identity());
        wait_gone(&identities, &format!("resourceslice-{slice}"), "Identity", REMOVAL_TIMEOUT).await?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), tenant);
        wait_gone(&secrets, &objects::slice_secret(slice), "Secret", REMOVAL_TIMEOUT).await
    }

    /// Evicts the pods from the virtual node, so that their owners notice, and waits for a while; Liqo evicts the
    /// remaining ones. True if none is left.
    async fn drain(&self, held: &HeldSlice, lease_id: &str) -> Result<bool, DeliveryError> {
        let (name, donor) = (held.slice.as_str(), held.donor.as_str());
        let nodes = self.namespaced(&held.tenant, &virtual_node());
        let operation = format!("drain virtual node {name}");
        let Some(node) = call_opt(&operation, nodes.get(name)).await? else { return Ok(true) };
        if let Some(patch) = objects::drain_patch(&node, lease_id) {
            let parameters = patching();
            call_opt(&operation, nodes.patch(name, &parameters, &Patch::Merge(&patch))).await?;
        }
        let pods = Api::<Pod>::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={name}")).limit(1);
        let began = tokio::time::Instant::now();
        let mut patience = self.settings.drain_patience;
        while !call(&operation, pods.list_metadata(&on_node)).await?.items.is_empty() {
            if began.elapsed() >= patience {
                tracing::info!(lease = lease_id, "pods are left on the virtual node; Liqo evicts them");
                return Ok(false);
            }
            // Without the donor this cluster cannot observe that a pod ended.
            if !self.answers(donor).await? {
                patience = patience.min(self.settings.donor_patience);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    /// Removes the peering on this side: remaining leases, the credential, the namespace, and Liqo's ForeignCluster.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn remove_identity(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        check::peer(peer, self.own_id().await?)?;
        let tenant = peer.tenant_namespace();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let operation = format!("read namespace {tenant}");
        let found = call_opt(&operation, namespaces.get(&tenant)).await?;
        // Absent, of another peering, or made manually: nothing of this peering is left.
        let ours = |namespace: &Namespace| namespace.labels().get(PEERING_LABEL) == Some(&peer.peering);
        if found.as_ref().is_some_and(|namespace| !ours(namespace)) {
            return Ok(());
        }
        if found.is_some() {
            for slice in self.slices(&format!("{PEERING_LABEL}={}", peer.peering)).await? {
                let held = HeldSlice::of(&slice);
                if let Some(lease_id) = slice.labels().get(LEASE_LABEL) {
                    self.drain(&held, lease_id).await?;
                }
                self.take_down(&held).await?;
            }
            let name = objects::identity_name(peer);
            self.delete(&self.namespaced(&tenant, &identity()), &name, "Identity", &peer.liqo_id).await?;
            self.delete(&self.namespaced(&tenant, &renew()), &name, "Renew", &peer.liqo_id).await?;
            let secrets = Api::<Secret>::namespaced(self.client.clone(), &tenant);
            self.delete(&secrets, &objects::token_secret(peer), "Secret", &peer.liqo_id).await?;
            self.delete(&namespaces, &tenant, "namespace", &peer.liqo_id).await?;
        }
        // Liqo never removes it. After the namespace, because Liqo makes it again while the namespace exists.
        let clusters = self.cluster_wide(&foreign_cluster());
        let read = format!("read ForeignCluster {}", peer.liqo_id);
        if let Some(cluster) = call_opt(&read, clusters.get(&peer.liqo_id)).await?
            && is_consumer(&cluster)
        {
            // The same cluster borrows from this one, so the donor's side of Liqo still needs it.
            return self.unmark(&peer.liqo_id).await;
        }
        self.delete(&clusters, &peer.liqo_id, "ForeignCluster", &peer.liqo_id).await
    }

    /// Deletes an object and waits until it is gone. A donor that does not answer in time is marked as gone.
    pub(super) async fn delete<K>(&self, api: &Api<K>, name: &str, what: &str, donor: &str) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        self.begin_delete(api, name, what).await?;
        self.wait_gone_or_mark(api, name, what, donor).await
    }

    /// Deletes an object without waiting.
    pub(super) async fn begin_delete<K>(&self, api: &Api<K>, name: &str, what: &str) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let operation = format!("delete {what} {name}");
        let Some(found) = call_opt(&operation, api.get_metadata(name)).await? else { return Ok(()) };
        if found.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: found.metadata.uid.clone(), resource_version: None };
            let parameters = DeleteParams::background().preconditions(preconditions);
            call_opt(&operation, api.delete(name, &parameters)).await?;
        }
        Ok(())
    }

    async fn wait_gone_or_mark<K>(&self, api: &Api<K>, name: &str, what: &str, donor: &str) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        // A donor that was marked before is not waited for again.
        let patience = if self.is_marked(donor).await? { REMOVAL_TIMEOUT } else { self.settings.donor_patience };
        let Err(waited) = wait_gone(api, name, what, patience).await else { return Ok(()) };
        if self.answers(donor).await? {
            return wait_gone(api, name, what, REMOVAL_TIMEOUT).await.map_err(|_| waited);
        }
        tracing::warn!(donor, object = what, name, "the donor does not answer; this cluster cleans up without it");
        self.mark(donor).await?;
        wait_gone(api, name, what, REMOVAL_TIMEOUT).await
    }

    /// Whether the donor's API server answers Liqo.
    pub(super) async fn answers(&self, donor: &str) -> Result<bool, DeliveryError> {
        let clusters = self.cluster_wide(&foreign_cluster());
        let found = call_opt(&format!("read ForeignCluster {donor}"), clusters.get(donor)).await?;
        Ok(found.is_some_and(|cluster| {
            let status = objects::condition(&cluster.data["status"]["conditions"], "APIServerStatus");
            status.is_none_or(|(status, _)| status == "Established")
        }))
    }

    async fn is_marked(&self, donor: &str) -> Result<bool, DeliveryError> {
        let clusters = self.cluster_wide(&foreign_cluster());
        let found = call_opt(&format!("read ForeignCluster {donor}"), clusters.get_metadata(donor)).await?;
        Ok(found.is_some_and(|cluster| cluster.annotations().get(GONE).is_some_and(|gone| gone == "true")))
    }

    pub(super) async fn mark(&self, donor: &str) -> Result<(), DeliveryError> {
        self.annotate(donor, json!("true")).await
    }

    /// Removes the mark of a donor: it may lend again.
    pub(super) async fn unmark(&self, donor: &str) -> Result<(), DeliveryError> {
        if self.is_marked(donor).await? { self.annotate(donor, serde_json::Value::Null).await } else { Ok(()) }
    }

    async fn annotate(&self, donor: &str, value: serde_json::Value) -> Result<(), DeliveryError> {
        let clusters = self.cluster_wide(&foreign_cluster());
        let patch = json!({ "metadata": { "annotations": { GONE: value } } });
        let parameters = patching();
        let operation = format!("mark ForeignCluster {donor}");
        call_opt(&operation, clusters.patch(donor, &parameters, &Patch::Merge(&patch))).await.map(drop)
    }
}

/// Whether the cluster borrows from this one by Liqo.
fn is_consumer(cluster: &DynamicObject) -> bool {
    matches!(cluster.data["status"]["role"].as_str(), Some("Consumer" | "ConsumerAndProvider"))
}
