//! The ConfigMap by which the policy `comity-virtual-nodes` knows the namespace of each virtual node.
//!
//! Any user who may create pods can write the tolerations and the selector of another lease's node. The policy refuses
//! to bind such pods. It knows virtual nodes by their names, so a node without an entry takes no pods.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_agent_kubernetes::call::{apply, call_opt, own_labels};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, ResourceExt as _};

use super::{LiqoOrigin, objects};

/// The ConfigMap, in the agent's namespace: a key for each virtual node, whose value is the namespace of its lease.
const NAMESPACES_MAP: &str = "comity-virtual-nodes";
/// How often the ConfigMap is compared with the leases, if no change of it is seen.
const RESTORE_INTERVAL: Duration = Duration::from_secs(15);

impl LiqoOrigin {
    /// Makes the ConfigMap agree with the slices that have a lease.
    pub(super) async fn publish_node_namespaces(&self) -> Result<(), DeliveryError> {
        // From the list to the write: an older list must not be written last.
        let _held = self.node_namespaces.lock().await;
        let wanted = node_namespaces(&self.slices(LEASE_LABEL).await?);
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.settings.agent_namespace);
        let operation = format!("read ConfigMap {}/{NAMESPACES_MAP}", self.settings.agent_namespace);
        let found = call_opt(&operation, maps.get(NAMESPACES_MAP)).await?;
        if found.is_some_and(|found| found.data.unwrap_or_default() == wanted) {
            return Ok(());
        }
        let metadata =
            ObjectMeta { name: Some(NAMESPACES_MAP.to_owned()), labels: Some(own_labels([])), ..ObjectMeta::default() };
        apply(&maps, &ConfigMap { metadata, data: Some(wanted), ..ConfigMap::default() }).await.map(drop)
    }

    /// Restores the ConfigMap when somebody changed or deleted it: without it the policy refuses nothing.
    pub(super) async fn keep_node_namespaces(self) {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.settings.agent_namespace);
        let mut changes = std::pin::pin!(watch_object(maps, NAMESPACES_MAP).default_backoff());
        let mut tick = tokio::time::interval(RESTORE_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut told = String::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                Some(_) = changes.next() => {}
            }
            let error = self.publish_node_namespaces().await.err().map(|error| error.to_string()).unwrap_or_default();
            if !error.is_empty() && error != told {
                tracing::warn!(
                    error,
                    "the namespaces of virtual nodes cannot be published; apply deploy/agent/liqo-origin.yaml"
                );
            }
            told = error;
        }
    }
}

/// The namespace of each slice, by its name, which is the node's.
fn node_namespaces(slices: &[DynamicObject]) -> BTreeMap<String, String> {
    let of = |slice: &DynamicObject| Some((slice.name_any(), slice.annotations().get(objects::TARGET_LABEL)?.clone()));
    slices.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource_slice;

    #[test]
    fn a_node_is_its_leases_namespaces() {
        let slice = |name: &str, namespace: Option<&str>| {
            let mut slice = DynamicObject::new(name, &resource_slice());
            slice.metadata.annotations =
                namespace.map(|namespace| BTreeMap::from([(objects::TARGET_LABEL.to_owned(), namespace.to_owned())]));
            slice
        };
        let found = node_namespaces(&[slice("lease-7", Some("team-a")), slice("lease-8", None)]);
        assert_eq!(found, BTreeMap::from([("lease-7".to_owned(), "team-a".to_owned())]));
    }
}
