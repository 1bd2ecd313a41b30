//! Removes one side of the network. Nothing here waits for the other cluster: every finalizer belongs to this cluster's
//! Liqo.

use comity_agent_kubernetes::call::call_opt;
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, ResourceExt as _};

use super::{LiqoNetwork, NETWORK_RIGHTS, is_ours, rights};
use crate::{
    LiqoPeer, REMOTE_CLUSTER_LABEL, configuration, gateway_client, gateway_server, ipam_network, public_key,
    waiting::{CONTROLLER_HINT, Waiting},
    wg_gateway_client, wg_gateway_server,
};

impl LiqoNetwork {
    /// Removes the objects of a peer, and returns when they and everything that Liqo made from them are gone. Gateways
    /// go first, because they use the rest. Idempotent, and works if the other cluster is dead. Objects of others stay.
    /// The caller ensures that [`apply`](Self::apply) applies nothing more for this peer.
    ///
    /// # Errors
    /// [`DeliveryError`]: temporary, naming the remaining objects, if it takes longer than the settings' patience.
    pub async fn remove(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        // Waits for an apply in progress; none follows it.
        drop(self.applying.lock().await);
        let namespace = peer.tenant_namespace();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let found = rights(call_opt(&format!("read namespace {namespace}"), namespaces.get(&namespace)).await)?;
        // The deletion of a namespace deletes everything in it.
        let Some(_) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else { return Ok(()) };
        if !NETWORK_RIGHTS.is_in_force(&self.client, &namespace).await? {
            rights(NETWORK_RIGHTS.bind(&self.client, &namespace).await)?;
        }
        for kind in [gateway_client(), gateway_server(), public_key(), configuration()] {
            self.delete_own(&kind, peer).await?;
        }
        Ok(())
    }

    /// Deletes this agent's object of a kind for a peer, and waits until everything that Liqo made from it is gone.
    pub(super) async fn delete_own(&self, kind: &ApiResource, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let (namespace, name) = (peer.tenant_namespace(), peer.liqo_id.as_str());
        let api = self.objects(kind, &namespace);
        let operation = format!("delete {} {namespace}/{name}", kind.kind);
        let Some(found) = rights(call_opt(&operation, api.get_metadata(name)).await)? else {
            return self.await_children(kind, peer).await;
        };
        if !is_ours(&found) {
            return Ok(());
        }
        if found.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: found.uid(), resource_version: None };
            let parameters = DeleteParams::background().preconditions(preconditions);
            rights(call_opt(&operation, api.delete(name, &parameters)).await)?;
        }
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.gone(&api, name, found.uid()).await?;
        self.await_children(kind, peer).await
    }

    /// Waits for the objects that Liqo removes with finalizers of its own: a gateway's ClusterRoleBinding, and the
    /// ranges of a Configuration that it assigned to the other cluster.
    async fn await_children(&self, kind: &ApiResource, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        if self.has_no_children(kind, peer).await? {
            return Ok(());
        }
        let Some(children) = children_of(kind) else { return Ok(()) };
        let api: Api<DynamicObject> = self.objects(&children, &peer.tenant_namespace());
        let operation = format!("wait until the {} of {} are gone", children.plural, peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.none_left(api, &of_peer(peer)).await
    }

    /// Whether no object is left that Liqo made from an object of this kind.
    pub(super) async fn has_no_children(&self, kind: &ApiResource, peer: &LiqoPeer) -> Result<bool, DeliveryError> {
        let Some(children) = children_of(kind) else { return Ok(true) };
        let api: Api<DynamicObject> = self.objects(&children, &peer.tenant_namespace());
        let operation = format!("list the {} of {}", children.plural, peer.liqo_id);
        let selection = ListParams::default().labels(&of_peer(peer)).limit(1);
        let left = rights(call_opt(&operation, api.list_metadata(&selection)).await)?;
        Ok(left.is_none_or(|left| left.items.is_empty()))
    }
}

fn of_peer(peer: &LiqoPeer) -> String {
    format!("{REMOTE_CLUSTER_LABEL}={}", peer.liqo_id)
}

fn children_of(kind: &ApiResource) -> Option<ApiResource> {
    match kind.kind.as_str() {
        "GatewayServer" => Some(wg_gateway_server()),
        "GatewayClient" => Some(wg_gateway_client()),
        "Configuration" => Some(ipam_network()),
        _ => None,
    }
}
