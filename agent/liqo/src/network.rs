//! Liqo's own network between two clusters, if it carries their pods.
//!
//! ```text
//! this cluster                          envelopes                         the other cluster
//! Networks (Liqo's IPAM) ─▶ own ranges ──────────▶ Configuration ─▶ remapped by its Liqo
//! GatewayServer or -Client ─▶ its Liqo makes Deployment, Service and key
//!                        └─▶ endpoint, public key ──────────▶ GatewayClient, PublicKey
//! ```
//!
//! The two agents do what `liqoctl network connect` does with the kubeconfigs of both clusters.
//! [`LiqoNetwork::tend`] resets all objects in every round. Objects that the agent did not make are left alone, and
//! reported as obstacles.

mod gateway_settings;
mod installed;
mod network_objects;
mod network_removal;
mod state;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::call::{MANAGED_BY, call_opt};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::{PeeringId, Side};
use ipnet::Ipv4Net;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::sync::Mutex;
use zeroize::Zeroize as _;

use crate::own_rights::TenantRole;
use crate::version::Version;
use crate::{LiqoPeer, PEERING_LABEL, configuration, connection, dynamic, gateway_client, gateway_server, public_key};

pub use gateway_settings::{GatewayServiceType, GatewaySettings};
pub use state::{GatewayEndpoint, NetworkState};

/// The manifest that gives the rights used here.
const NETWORK_MANIFEST: &str = "deploy/agent/liqo-network.yaml";
/// The agent's rights where gateways are.
const NETWORK_RIGHTS: TenantRole = TenantRole {
    name: "comity-liqo-network-tenant",
    manifest: NETWORK_MANIFEST,
    gives: ("patch", "networking.liqo.io", "gatewayservers"),
};
/// Label by which Liqo finds public keys of gateways.
const GATEWAY_LABEL: &str = "networking.liqo.io/gateway-resource";
/// Label that says what a Network of Liqo's IPAM is.
const NETWORK_TYPE_LABEL: &str = "ipam.liqo.io/network-type";
/// Most networks of a kind that are read.
const MAX_NETWORKS: u32 = 64;

/// Settings of this cluster's side of the network.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// Where Liqo is installed.
    pub liqo_namespace: String,
    /// Its version, as in "v1.2.0"; empty if unknown.
    pub liqo_version: String,
    /// How gateways are made.
    pub gateway: GatewaySettings,
    /// Longest that a removal waits for Liqo's controllers.
    pub patience: Duration,
}

/// State of the network to one other cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkStatus {
    /// In progress; the text says what is missing.
    Pending(String),
    /// It cannot be made: code and reason.
    Refused(String),
    /// Both gateways are configured.
    Ready {
        /// Whether Liqo reports that they reach each other.
        connected: bool,
    },
}

impl NetworkStatus {
    /// A text for people.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Pending(reason) => format!("waits: {reason}"),
            Self::Refused(reason) => format!("refused: {reason}"),
            Self::Ready { connected: true } => "connected".to_owned(),
            Self::Ready { connected: false } => "set up; Liqo's gateways have not reached each other yet".to_owned(),
        }
    }
}

/// Networks by the peering that carries them.
pub type Networks = std::collections::BTreeMap<PeeringId, ObservedNetwork>;

/// Observed network to one other cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNetwork {
    /// This side's state for the other side; `None` while it is unknown.
    pub local: Option<NetworkState>,
    /// Its state.
    pub status: NetworkStatus,
}

/// Drives the network of this cluster's Liqo. Cheap to clone.
#[derive(Clone)]
pub struct LiqoNetwork {
    client: Client,
    settings: NetworkSettings,
    /// Held while objects are applied, so that a removal waits for that.
    tending: Arc<Mutex<()>>,
}

impl std::fmt::Debug for LiqoNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiqoNetwork").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl LiqoNetwork {
    /// Works on the cluster behind `client`.
    #[must_use]
    pub fn new(client: Client, settings: NetworkSettings) -> Self {
        Self { client, settings, tending: Arc::default() }
    }

    /// Applies this side's objects as far as the other side's state is known, and observes the result. `current` is
    /// read right before: a network that it no longer returns is not applied.
    pub async fn tend(
        &self,
        current: impl FnOnce() -> Option<(LiqoPeer, Side, Option<NetworkState>)>,
    ) -> Option<ObservedNetwork> {
        let _tending = self.tending.lock().await;
        let (peer, side, remote) = current()?;
        let mut pass = Pass { network: self, peer: &peer, side, local: None };
        let status = match pass.run(remote.as_ref()).await {
            Ok(status) => status,
            Err(error) => {
                // A pass that failed reports no state.
                pass.local = None;
                match error {
                    DeliveryError::Permanent { code, message } => NetworkStatus::Refused(format!("{code}: {message}")),
                    error => NetworkStatus::Pending(error.to_string()),
                }
            }
        };
        Some(ObservedNetwork { local: pass.local, status })
    }

    fn objects(&self, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        dynamic::namespaced(&self.client, kind, namespace)
    }

    /// Networks of this cluster's pods, and those for external addresses, as Liqo's IPAM has them.
    async fn own_ranges(&self) -> Result<NetworkState, DeliveryError> {
        Ok(NetworkState {
            pod_cidrs: self.ranges("pod-cidr").await?,
            external_cidrs: self.ranges("external-cidr").await?,
            public_key: None,
            endpoint: None,
        })
    }

    async fn ranges(&self, kind: &str) -> Result<Vec<Ipv4Net>, DeliveryError> {
        let namespace = &self.settings.liqo_namespace;
        let networks = self.objects(&super::ipam_network(), namespace);
        let operation = format!("list the Networks of type {kind} in namespace {namespace}");
        let of_kind = ListParams::default().labels(&format!("{NETWORK_TYPE_LABEL}={kind}")).limit(MAX_NETWORKS);
        let found =
            rights(call_opt(&operation, networks.list(&of_kind)).await)?.map(|list| list.items).unwrap_or_default();
        if found.is_empty() {
            let text = format!(
                "namespace {namespace} has no Network of type {kind}; install Liqo with networking.enabled: true and \
                 ipam.podCIDR set"
            );
            return Err(DeliveryError::permanent("liqo-network-absent", text));
        }
        let range = |network: &DynamicObject| network.data.pointer("/status/cidr")?.as_str()?.parse().ok();
        found
            .iter()
            .map(|network| {
                let name = network.name_any();
                range(network).ok_or_else(|| {
                    DeliveryError::temporary(&operation, format!("{name} has no status.cidr; does liqo-ipam run?"))
                })
            })
            .collect()
    }
}

/// One round over the objects of a peer.
struct Pass<'a> {
    network: &'a LiqoNetwork,
    peer: &'a LiqoPeer,
    side: Side,
    local: Option<NetworkState>,
}

fn pending(reason: String) -> Result<NetworkStatus, DeliveryError> {
    Ok(NetworkStatus::Pending(reason))
}

impl Pass<'_> {
    async fn run(&mut self, remote: Option<&NetworkState>) -> Result<NetworkStatus, DeliveryError> {
        let (namespace, cluster) = (self.peer.tenant_namespace(), &self.peer.cluster);
        if let Some(missing) = self.network.check_namespace(self.peer, &namespace).await? {
            return pending(missing);
        }
        let mut local = self.network.own_ranges().await?;
        if let Some(gateway) = self.gateway().await? {
            self.network.fill_in(&mut local, &gateway).await?;
        }
        self.local = Some(local.clone());
        let Some(remote) = remote else {
            return pending(format!("cluster {cluster} has not sent its Liqo's networks yet"));
        };
        self.network.check_ranges(remote)?;
        let object = self.ensure(&configuration(), network_objects::configuration(self.peer, remote)).await?;
        if !network_objects::is_remapped(&object, remote) {
            let name = &self.peer.liqo_id;
            return pending(format!(
                "Liqo has not remapped the networks in Configuration {namespace}/{name} yet; does liqo-ipam run?"
            ));
        }
        let (kind, wanted, others) = match (self.side, &remote.endpoint) {
            (Side::Donor, _) => {
                (gateway_server(), network_objects::server(self.peer, &self.network.settings), gateway_client())
            }
            (Side::Origin, Some(endpoint)) => (
                gateway_client(),
                network_objects::client(self.peer, &self.network.settings, endpoint),
                gateway_server(),
            ),
            (Side::Origin, None) => {
                return pending(format!("cluster {cluster} has not sent the endpoint of its gateway yet"));
            }
        };
        self.delete_obsolete(&others).await?;
        if let Some(remains) = self.gateway_leftover(&kind).await? {
            return pending(remains);
        }
        let gateway = self.ensure(&kind, wanted).await?;
        self.network.fill_in(&mut local, &gateway).await?;
        self.local = Some(local.clone());
        self.with_gateway(&local, remote).await
    }

    /// Completes the round once this side's gateway exists.
    async fn with_gateway(&self, local: &NetworkState, remote: &NetworkState) -> Result<NetworkStatus, DeliveryError> {
        let (namespace, name) = (self.peer.tenant_namespace(), &self.peer.liqo_id);
        if let Some(key) = &remote.public_key {
            self.ensure(&public_key(), network_objects::public_key(self.peer, key)).await?;
        }
        if local.public_key.is_none() {
            return pending(format!(
                "Liqo has made no key for the gateway {namespace}/{name} yet; the events there say why"
            ));
        }
        if self.side == Side::Donor && local.endpoint.is_none() {
            let service = self.network.settings.gateway.service_type;
            let (kind, hint) = (service.text(), service.hint());
            return pending(format!(
                "the gateway has no endpoint: Service {namespace}/gw-{name} of type {kind} {hint}"
            ));
        }
        if remote.public_key.is_none() {
            return pending(format!("cluster {} has not sent the key of its gateway yet", self.peer.cluster));
        }
        Ok(NetworkStatus::Ready { connected: self.is_connected(&namespace).await? })
    }

    /// This side's gateway, if it exists.
    async fn gateway(&self) -> Result<Option<DynamicObject>, DeliveryError> {
        let (kind, name) = (gateway_of(self.side), &self.peer.liqo_id);
        let api = self.network.objects(&kind, &self.peer.tenant_namespace());
        let found = rights(call_opt(&format!("read {} {name}", kind.kind), api.get(name)).await)?;
        Ok(found.filter(|found| found.metadata.deletion_timestamp.is_none()))
    }

    /// Creates or resets the object. An object that somebody else made is left alone.
    async fn ensure(&self, kind: &ApiResource, object: DynamicObject) -> Result<DynamicObject, DeliveryError> {
        let api = self.network.objects(kind, &self.peer.tenant_namespace());
        if let Some(found) = self.own(kind).await?
            && found.metadata.deletion_timestamp.is_some()
        {
            let operation = format!("make {} {}", kind.kind, self.peer.liqo_id);
            return Err(DeliveryError::temporary(operation, "the old one is still being deleted"));
        }
        rights(dynamic::apply(&api, &object).await)
    }

    /// A remaining object of a deleted gateway, while there is no gateway. Liqo makes a key and a Deployment only if
    /// none of that name exist: a new gateway would get neither before Kubernetes has collected the old ones.
    async fn gateway_leftover(&self, kind: &ApiResource) -> Result<Option<String>, DeliveryError> {
        if self.own(kind).await?.is_some() {
            return Ok(None);
        }
        let (namespace, client) = (self.peer.tenant_namespace(), &self.network.client);
        let name = format!("gw-{}", self.peer.liqo_id);
        let deployments = Api::<Deployment>::namespaced(client.clone(), &namespace);
        let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
        let (operation, deployment) = (format!("read Deployment {namespace}/{name}"), deployments.get_metadata(&name));
        let deployment = rights(call_opt(&operation, deployment).await)?;
        let (operation, secret) = (format!("read Secret {namespace}/{name}"), secrets.get_metadata(&name));
        let left = match (deployment, rights(call_opt(&operation, secret).await)?) {
            (None, None) if self.network.has_no_children(kind, self.peer).await? => return Ok(None),
            (None, None) => "a Liqo object of the earlier gateway is".to_owned(),
            (Some(_), _) => format!("Deployment {namespace}/{name} of the earlier gateway is"),
            (None, Some(_)) => format!("Secret {namespace}/{name} of the earlier gateway is"),
        };
        Ok(Some(format!("{left} still there; does kube-controller-manager run, which collects it?")))
    }

    /// Deletes an object that an earlier peering made in the other role: two clusters have one pair of gateways.
    async fn delete_obsolete(&self, kind: &ApiResource) -> Result<(), DeliveryError> {
        match self.own(kind).await? {
            Some(_) => self.network.delete_own(kind, self.peer).await,
            None => Ok(()),
        }
    }

    /// This agent's object of a kind; an error if somebody else made it.
    async fn own(&self, kind: &ApiResource) -> Result<Option<PartialObjectMeta<DynamicObject>>, DeliveryError> {
        let (namespace, name) = (self.peer.tenant_namespace(), &self.peer.liqo_id);
        let api = self.network.objects(kind, &namespace);
        let found = rights(call_opt(&format!("read {} {name}", kind.kind), api.get_metadata(name)).await)?;
        if found.as_ref().is_some_and(|found| !is_ours(found)) {
            let text = format!(
                "{} {name} in namespace {namespace} was not made by Comity: the networks are connected by hand; undo \
                 that with liqoctl network reset",
                kind.kind
            );
            return Err(DeliveryError::permanent("liqo-network-by-hand", text));
        }
        Ok(found)
    }

    /// Whether this side's gateway reports that it reaches the other one.
    async fn is_connected(&self, namespace: &str) -> Result<bool, DeliveryError> {
        let name = format!("gw-{}", self.peer.liqo_id);
        let connections = self.network.objects(&connection(), namespace);
        let found = rights(call_opt(&format!("read Connection {name}"), connections.get(&name)).await)?;
        let value = found.as_ref().and_then(|found| found.data.pointer("/status/value")).and_then(Value::as_str);
        Ok(value == Some("Connected"))
    }
}

/// The kind of a side's gateway.
fn gateway_of(side: Side) -> ApiResource {
    match side {
        Side::Donor => gateway_server(),
        Side::Origin => gateway_client(),
    }
}

impl LiqoNetwork {
    /// Adds the gateway's endpoint and public key, which the other side needs.
    async fn fill_in(&self, local: &mut NetworkState, gateway: &DynamicObject) -> Result<(), DeliveryError> {
        local.public_key = self.gateway_key(gateway).await?;
        local.endpoint = network_objects::endpoint(gateway);
        Ok(())
    }

    /// Checks that the tenant namespace can be used; returns what is missing.
    async fn check_namespace(&self, peer: &LiqoPeer, namespace: &str) -> Result<Option<String>, DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        match rights(call_opt(&format!("read namespace {namespace}"), namespaces.get(namespace)).await)? {
            // The key exchange makes it, and checks its owner.
            None => return Ok(Some(format!("namespace {namespace} is not made yet"))),
            Some(found) if found.metadata.deletion_timestamp.is_some() => {
                return Ok(Some(format!("namespace {namespace} is being deleted")));
            }
            Some(found) if !found.labels().contains_key(PEERING_LABEL) => {
                let text = format!(
                    "namespace {namespace} was not made by Comity: cluster {} is peered manually; run liqoctl unpeer",
                    peer.liqo_id
                );
                return Err(DeliveryError::permanent("liqo-network-by-hand", text));
            }
            Some(_) => {}
        }
        if !NETWORK_RIGHTS.is_in_force(&self.client, namespace).await? {
            rights(NETWORK_RIGHTS.bind(&self.client, namespace).await)?;
        }
        Ok(None)
    }

    /// Liqo before 1.2 routes only to the first pod network.
    fn check_ranges(&self, remote: &NetworkState) -> Result<(), DeliveryError> {
        let version = Version::parse(&self.settings.liqo_version);
        if remote.pod_cidrs.len() < 2 || version.is_none_or(Version::takes_several_pod_networks) {
            return Ok(());
        }
        let text = format!(
            "the other cluster's pods have addresses in {} networks, and Liqo {} of this cluster routes to one; \
             install Liqo 1.2 here, or set ipam.podCIDR there to one that holds them all",
            remote.pod_cidrs.len(),
            self.settings.liqo_version
        );
        Err(DeliveryError::permanent("liqo-pod-cidrs", text))
    }

    /// Base64 of a gateway's public key, from the Secret with Liqo's keys.
    async fn gateway_key(&self, gateway: &DynamicObject) -> Result<Option<String>, DeliveryError> {
        let text = |field: &str| gateway.data.pointer(&format!("/status/secretRef/{field}")).and_then(Value::as_str);
        let Some(name) = text("name") else { return Ok(None) };
        let namespace = gateway.namespace().unwrap_or_default();
        if text("namespace").is_some_and(|named| named != namespace) {
            return Ok(None);
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
        let found = rights(call_opt(&format!("read Secret {namespace}/{name}"), secrets.get(name)).await)?;
        let Some(mut data) = found.and_then(|secret| secret.data) else { return Ok(None) };
        let key = data.get("publicKey").map(|key| STANDARD.encode(&key.0));
        // The Secret also contains the private key.
        data.values_mut().for_each(|value| value.0.zeroize());
        Ok(key.filter(|key| state::wireguard_key(key).is_some()))
    }
}

/// Whether this agent made an object.
fn is_ours(object: &impl kube::Resource) -> bool {
    let (key, value) = MANAGED_BY;
    object.labels().get(key).is_some_and(|found| found == value)
}

/// Adds to an error about missing rights the manifest that grants them.
fn rights<T>(result: Result<T, DeliveryError>) -> Result<T, DeliveryError> {
    result.map_err(|error| match error {
        DeliveryError::Permanent { code: "kubernetes-forbidden", message } => DeliveryError::permanent(
            "kubernetes-forbidden",
            message.replace("deploy/agent/rbac.yaml", NETWORK_MANIFEST),
        ),
        other => other,
    })
}
