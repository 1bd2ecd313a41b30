//! Removes an origin's objects from this cluster, without waiting for the origin.

use comity_agent_kubernetes::call::{call, call_opt};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::class_controller::REPLICATED;
use super::csr::slice_user;
use super::grants::Grant;
use super::rights::rights;
use super::slice::{is_denied, suits};
use super::tenant::NONCE_SECRET;
use super::{LiqoDonor, peer_account};
use crate::{
    CREATOR_LABEL, LiqoPeer, MAX_IDLE_SLICES, PEERING_LABEL, REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL, dynamic,
    foreign_cluster, identity, namespace_map, quota, resource_slice, shadow_pod, tenant,
    waiting::{CONTROLLER_HINT, Waiting},
};

/// Liqo's annotation of the namespaces that it makes: "NAMESPACE/NAME" of the NamespaceMap.
const NAMESPACE_MAP_ANNOTATION: &str = "liqo.io/managed-by-namespace-map";
/// Most slices of one peer that are read: far more than its leases.
const MAX_LISTED: u32 = 1_000;
const NAMESPACE_HINT: &str = "is kube-controller-manager running?";

impl LiqoDonor {
    /// Ends the pods of a slice's lease; returns when they are gone. The grant must be withdrawn before, so that the
    /// policies admit no new pod. The slice is kept for the next lease, unless enough are idle. Idempotent.
    /// # Errors
    /// [`DeliveryError`].
    pub async fn drain_slice(&self, peer: &LiqoPeer, slice: &str) -> Result<(), DeliveryError> {
        let user = slice_user(slice, &peer.liqo_id);
        let creator = format!("{CREATOR_LABEL}={user}");
        let of_lease = ListParams::default().labels(&creator);
        let shadow_pods = Api::<DynamicObject>::all_with(self.client.clone(), &shadow_pod());
        let list = rights(call("list the ShadowPods of the lease", shadow_pods.list_metadata(&of_lease)).await)?;
        let mut namespaces: Vec<String> = list.items.iter().filter_map(kube::ResourceExt::namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        for namespace in namespaces {
            let operation = format!("end the offloaded pods of slice {slice} in {namespace}");
            let shadow_pods = dynamic::namespaced(&self.client, &shadow_pod(), &namespace);
            rights(call(&operation, shadow_pods.delete_collection(&DeleteParams::background(), &of_lease)).await)?;
            let soon = DeleteParams::default()
                .grace_period(u32::try_from(self.settings.pod_grace.as_secs()).unwrap_or(u32::MAX));
            let pods = Api::<Pod>::namespaced(self.client.clone(), &namespace);
            rights(call(&operation, pods.delete_collection(&soon, &of_lease)).await)?;
        }
        let operation = format!("wait until the pods of slice {slice} are gone");
        let waiting = Waiting { operation: &operation, hint: "are its nodes up?", patience: self.settings.patience };
        waiting.none_left(shadow_pods, &creator).await?;
        waiting.none_left(Api::<PartialObjectMeta<Pod>>::all(self.client.clone()), &creator).await?;
        if self.is_admitted(peer).await? {
            let others = self.replicated_slices(peer).await?;
            let idle = others.iter().filter(|other| other.name_any() != slice && is_denied(other)).count();
            return if idle < MAX_IDLE_SLICES { Ok(()) } else { self.remove_slice(peer, slice).await };
        }
        self.remove_slice(peer, slice).await?;
        self.remove_orphaned_replicas(peer).await
    }

    /// Names of a peer's idle slices that can serve a lease with this grant, in order.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn idle_slices(&self, peer: &LiqoPeer, grant: &Grant) -> Result<Vec<String>, DeliveryError> {
        let slices = self.replicated_slices(peer).await?;
        // Names become those of nodes, and of certificates.
        let names = slices.iter().filter(|slice| suits(slice, grant)).map(kube::ResourceExt::name_any);
        Ok(names.filter(|name| name.parse::<LeaseId>().is_ok()).collect())
    }

    /// A peer's slices, in order of their names.
    async fn replicated_slices(&self, peer: &LiqoPeer) -> Result<Vec<DynamicObject>, DeliveryError> {
        let slices = dynamic::namespaced(&self.client, &resource_slice(), &peer.tenant_namespace());
        let operation = format!("list the ResourceSlices of {}", peer.liqo_id);
        let replicas = ListParams::default().labels(REPLICATED).limit(MAX_LISTED);
        Ok(rights(call_opt(&operation, slices.list(&replicas)).await)?.map(|list| list.items).unwrap_or_default())
    }

    /// Whether the origin may still call this cluster: its Tenant exists, and its ServiceAccount if it authenticates by
    /// token.
    async fn is_admitted(&self, peer: &LiqoPeer) -> Result<bool, DeliveryError> {
        let tenants = dynamic::namespaced(&self.client, &tenant(), &peer.tenant_namespace());
        let read = format!("read Tenant {}", peer.liqo_id);
        let found = rights(call_opt(&read, tenants.get(&peer.liqo_id)).await)?;
        match found.filter(|found| found.metadata.deletion_timestamp.is_none()) {
            Some(found) if peer_account::uses_token(&found) => self.has_account(peer).await,
            found => Ok(found.is_some()),
        }
    }

    /// If somebody deleted an origin's Tenant or ServiceAccount, it can delete nothing here any more, and its own
    /// objects would wait for that forever. So once the last of its slices is gone, this agent deletes the other
    /// replicas.
    async fn remove_orphaned_replicas(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let replicas = ListParams::default().labels(REPLICATED).limit(1);
        let mut left = Vec::new();
        for kind in [resource_slice(), namespace_map()] {
            let operation = format!("list the {} of {}, which has no access", kind.plural, peer.liqo_id);
            let api = dynamic::namespaced(&self.client, &kind, &peer.tenant_namespace());
            left.push(!rights(call(&operation, api.list_metadata(&replicas)).await)?.items.is_empty());
        }
        if left != [false, true] {
            return Ok(());
        }
        tracing::warn!(
            origin = peer.liqo_id,
            "its Tenant or ServiceAccount was deleted: its replicas here are removed"
        );
        self.remove_replicas(peer).await
    }

    async fn remove_slice(&self, peer: &LiqoPeer, name: &str) -> Result<(), DeliveryError> {
        let namespace = peer.tenant_namespace();
        let slices = dynamic::namespaced(&self.client, &resource_slice(), &namespace);
        let Some(slice) = rights(call_opt("read the lease's slice", slices.get(name)).await)? else {
            return Ok(());
        };
        if slice.labels().get("liqo.io/replicated").map(String::as_str) != Some("true") {
            // This cluster's own request to the peer.
            return Ok(());
        }
        let operation = format!("delete ResourceSlice {name} in {namespace}");
        rights(call_opt(&operation, slices.delete(name, &DeleteParams::default())).await)?;
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.gone(&slices, name, slice.uid()).await
    }

    /// Removes a peer's objects from this cluster: rights first, then its slices and remote namespaces with all pods in
    /// them, then Tenant, namespace and ForeignCluster. Objects by which this cluster borrows from that peer stay.
    /// Idempotent; returns when all is gone.
    ///
    /// # Errors
    /// [`DeliveryError`]: temporary, naming what is left, if it takes longer than the settings' patience.
    pub async fn remove_tenant(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let borrows = self.borrows_from(peer).await?;
        let tenants = dynamic::namespaced(&self.client, &tenant(), &peer.tenant_namespace());
        let read = format!("read Tenant {}", peer.liqo_id);
        let found = rights(call_opt(&read, tenants.get(&peer.liqo_id)).await)?;
        if found.as_ref().is_some_and(|found| !found.labels().contains_key(PEERING_LABEL)) {
            tracing::warn!(tenant = peer.liqo_id, "a Tenant of this name was not made by Comity; it is left alone");
            return Ok(());
        }
        if found.is_some() && borrows {
            // Draining would also delete the slices by which this cluster borrows; without its Tenant the peer has no
            // rights either.
            self.delete_tenant(peer, &tenants).await?;
        } else if found.is_some() {
            let drained = json!({ "spec": { "tenantCondition": "Drained" } });
            let operation = format!("drain Tenant {}", peer.liqo_id);
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&drained));
            rights(call_opt(&operation, tenants.patch(&peer.liqo_id, &parameters, &patch)).await)?;
        }
        self.remove_account(peer).await?;
        self.remove_replicas(peer).await?;
        self.delete_tenant(peer, &tenants).await?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &peer.tenant_namespace());
        rights(call_opt("delete Secret liqo-nonce", secrets.delete(NONCE_SECRET, &DeleteParams::default())).await)?;
        if borrows {
            return Ok(());
        }
        self.remove_namespace(peer).await?;
        self.remove_foreign_cluster(peer).await
    }

    /// Whether this cluster is, or is becoming, an origin of the same peer.
    async fn borrows_from(&self, peer: &LiqoPeer) -> Result<bool, DeliveryError> {
        let identities = dynamic::namespaced(&self.client, &identity(), &peer.tenant_namespace());
        let list = rights(call("list Identities", identities.list_metadata(&ListParams::default().limit(1))).await)?;
        if !list.items.is_empty() {
            return Ok(true);
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &peer.tenant_namespace());
        let signed = call_opt("read Secret liqo-signed-nonce", secrets.get_metadata("liqo-signed-nonce")).await;
        // An origin that authenticates by token has neither.
        Ok(rights(signed)?.is_some() || self.has_origins_rights(peer).await?)
    }

    /// Removes slices and NamespaceMaps that came from the peer; Liqo removes their dependent objects.
    async fn remove_replicas(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let namespace = peer.tenant_namespace();
        let replicas = ListParams::default().labels(REPLICATED);
        for kind in [resource_slice(), namespace_map()] {
            let operation = format!("delete the {} of {}", kind.plural, peer.liqo_id);
            let api = dynamic::namespaced(&self.client, &kind, &namespace);
            rights(call(&operation, api.delete_collection(&DeleteParams::background(), &replicas)).await)?;
        }
        let remote = format!("{REMOTE_CLUSTER_LABEL}={},!{TENANT_NAMESPACE_LABEL}", peer.liqo_id);
        // Liqo 1.2.0 does not retry a failed deletion of a remote namespace, and then keeps its NamespaceMap forever;
        // it continues once somebody else deletes the namespace.
        self.delete_remote_namespaces(&namespace, &remote).await?;
        for kind in [resource_slice(), namespace_map()] {
            let operation = format!("wait until the {} of {} are gone", kind.plural, peer.liqo_id);
            let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
            waiting.none_left(dynamic::namespaced(&self.client, &kind, &namespace), REPLICATED).await?;
        }
        let operation = format!("wait until the quotas of {} are gone", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: NAMESPACE_HINT, patience: self.settings.patience };
        waiting.none_left(dynamic::namespaced(&self.client, &quota(), &namespace), "").await?;
        let operation = format!("wait until the remote namespaces of {} are gone", peer.liqo_id);
        let waiting = Waiting { operation: &operation, ..waiting };
        // Liqo forgets a namespace whose mapping was withdrawn while it was being made. By now all remaining ones must
        // go.
        self.delete_remote_namespaces(&namespace, &remote).await?;
        waiting.none_left(Api::<PartialObjectMeta<Namespace>>::all(self.client.clone()), &remote).await
    }

    /// Deletes the namespaces that were made for the NamespaceMaps of one tenant namespace.
    async fn delete_remote_namespaces(&self, tenant_namespace: &str, remote: &str) -> Result<(), DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let selection = ListParams::default().labels(remote);
        let list = rights(call("list remote namespaces", namespaces.list_metadata(&selection)).await)?;
        let made_here = |namespace: &&PartialObjectMeta<Namespace>| {
            let map = namespace.annotations().get(NAMESPACE_MAP_ANNOTATION);
            map.and_then(|map| map.split_once('/')).is_some_and(|(within, _)| within == tenant_namespace)
        };
        for namespace in list.items.iter().filter(made_here) {
            let name = namespace.name_any();
            let operation = format!("delete remote namespace {name}");
            rights(call_opt(&operation, namespaces.delete(&name, &DeleteParams::background())).await)?;
        }
        Ok(())
    }

    async fn delete_tenant(&self, peer: &LiqoPeer, tenants: &Api<DynamicObject>) -> Result<(), DeliveryError> {
        let operation = format!("delete Tenant {}", peer.liqo_id);
        let Some(found) = rights(call_opt(&operation, tenants.get_metadata(&peer.liqo_id)).await)? else {
            return Ok(());
        };
        rights(call_opt(&operation, tenants.delete(&peer.liqo_id, &DeleteParams::default())).await)?;
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.gone(tenants, &peer.liqo_id, found.uid()).await
    }

    async fn remove_namespace(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let name = peer.tenant_namespace();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let operation = format!("delete namespace {name}");
        let Some(found) = rights(call_opt(&operation, namespaces.get(&name)).await)? else { return Ok(()) };
        if found.labels().get(REMOTE_CLUSTER_LABEL) != Some(&peer.liqo_id) {
            tracing::warn!(namespace = name, "a namespace of this name is no tenant namespace; it is left alone");
            return Ok(());
        }
        rights(call_opt(&operation, namespaces.delete(&name, &DeleteParams::background())).await)?;
        let waiting = Waiting { operation: &operation, hint: NAMESPACE_HINT, patience: self.settings.patience };
        waiting.gone(&namespaces, &name, found.uid()).await
    }

    /// Liqo never removes these itself.
    async fn remove_foreign_cluster(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let all = Api::<DynamicObject>::all_with(self.client.clone(), &foreign_cluster());
        let operation = format!("delete ForeignCluster {}", peer.liqo_id);
        let Some(found) = rights(call_opt(&operation, all.get_metadata(&peer.liqo_id)).await)? else { return Ok(()) };
        rights(call_opt(&operation, all.delete(&peer.liqo_id, &DeleteParams::default())).await)?;
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.gone(&all, &peer.liqo_id, found.uid()).await
    }
}
