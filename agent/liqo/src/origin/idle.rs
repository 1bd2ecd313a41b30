//! Idle virtual nodes: empty, closed to all pods, and kept from an ended lease for the next one.
//!
//! A virtual-kubelet takes a second or two to start, and a remote namespace longer to be recreated. So a lease that
//! ends cleanly leaves both for the next lease of its peering. The donor assigns the slice, and grants it nothing until
//! then.

use comity_agent_kubernetes::call::{call_opt, patching};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::Patch;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::objects::HeldSlice;
use super::{LiqoOrigin, objects};
use crate::{PEERING_LABEL, REMOTE_CLUSTER_LABEL, resource_slice, virtual_node};

impl LiqoOrigin {
    /// Keeps the empty virtual node of an ended lease for the next one; false if it is not worth keeping.
    pub(super) async fn keep_idle(&self, held: &HeldSlice) -> Result<bool, DeliveryError> {
        if !self.is_worth_keeping(held).await? {
            return Ok(false);
        }
        let name = held.slice.as_str();
        let nodes = self.namespaced(&held.tenant, &virtual_node());
        let operation = format!("keep virtual node {name} for the next lease");
        let Some(node) = call_opt(&operation, nodes.get(name)).await? else { return Ok(false) };
        let parameters = patching();
        let patch = Patch::Merge(objects::idle_patch(&node));
        call_opt(&operation, nodes.patch(name, &parameters, &patch)).await?;
        // Last, because the lease is found by this label.
        let patch = Patch::Merge(json!({ "metadata": { "labels": { LEASE_LABEL: null } } }));
        let slices = self.namespaced(&held.tenant, &resource_slice());
        call_opt(&operation, slices.patch(name, &parameters, &patch)).await?;
        tracing::info!(node = name, donor = held.donor, "the virtual node waits for the next lease");
        Ok(true)
    }

    /// Whether it is complete and ready, its donor answers, and there are not too many.
    async fn is_worth_keeping(&self, held: &HeldSlice) -> Result<bool, DeliveryError> {
        let name = held.slice.as_str();
        let slices = self.namespaced(&held.tenant, &resource_slice());
        let operation = format!("check whether virtual node {name} can be reused");
        let slice = call_opt(&operation, slices.get_metadata(name)).await?;
        if slice.is_none_or(|slice| slice.metadata.deletion_timestamp.is_some()) {
            return Ok(false);
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &held.tenant);
        let credential = call_opt(&operation, secrets.get_metadata(&objects::slice_secret(name))).await?;
        let node = call_opt(&operation, Api::<Node>::all(self.client.clone()).get(name)).await?;
        if credential.is_none() || !node.as_ref().is_some_and(is_ready) || !self.answers(&held.donor).await? {
            return Ok(false);
        }
        let others = self.slices(&format!("{PEERING_LABEL},!{LEASE_LABEL}")).await?;
        let others = others.iter().filter(|slice| slice.labels().get(REMOTE_CLUSTER_LABEL) == Some(&held.donor));
        Ok(others.filter(|slice| slice.name_any() != name).count() < self.settings.idle_nodes)
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a slice is an idle one of this peering.
pub(super) fn is_idle(slice: &DynamicObject, peering: &str) -> bool {
    let label = |key: &str| slice.labels().get(key).map(String::as_str);
    label(PEERING_LABEL) == Some(peering) && label(LEASE_LABEL).is_none()
}
