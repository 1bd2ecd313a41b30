//! The origin's side of Liqo.
//!
//! ```text
//! answer ─▶ accept_identity          once per peering: a credential for the donor's API, held by Liqo alone
//! accept ─▶ ready ─▶ remove          once per lease: slice → virtual node → offloaded namespace
//! maintain                           all the time: finished pods stop counting, nodes recover with the line
//! ```
//!
//! Every step can be repeated. It never grants itself anything, never changes Liqo objects that it did not make, and
//! never treats a donor as dead before a bounded wait.

mod check;
mod handshake;
mod idle;
mod lease_removal;
pub mod maintenance;
mod node_namespaces;
mod objects;
mod offer;
mod own_network;
mod signing;
mod token_secret;
mod virtual_nodes;
mod vk_options;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::call;
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::is_dns_label;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::{Mutex, OnceCell};

use crate::own_rights::{Right, TenantRole};
use crate::{MAX_IDLE_SLICES, ORIGIN_ROLE, dynamic};

pub use maintenance::{DonorLine, MaintenanceSettings};
pub use objects::SliceRequest;
pub use own_network::{OwnNetwork, own_network};

/// The ConfigMap with this cluster's Liqo id.
const CLUSTER_ID_MAP: &str = "liqo-clusterid-configmap";
const CLUSTER_ID_KEY: &str = "CLUSTER_ID";

/// The agent's rights where credentials are.
const ORIGIN_RIGHTS: TenantRole = TenantRole {
    name: ORIGIN_ROLE,
    manifest: "deploy/agent/liqo-origin.yaml",
    sample: Right { verb: "watch", group: "", resource: "secrets" },
};

/// Naming of an offloaded namespace on the donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMapping {
    /// `NAMESPACE-LIQO_ID`: never clashes, but only the short names of Services work there.
    #[default]
    DefaultName,
    /// The same name: all names of Services work as on the origin, if the donor has no namespace of that name.
    EnforceSameName,
}

impl NamespaceMapping {
    const fn strategy(self) -> &'static str {
        match self {
            Self::DefaultName => "DefaultName",
            Self::EnforceSameName => "EnforceSameName",
        }
    }
}

/// Settings of the origin's side.
#[derive(Clone, Debug)]
pub struct OriginSettings {
    /// Where Liqo is installed.
    pub liqo_namespace: String,
    /// The agent's own namespace.
    pub agent_namespace: String,
    /// Pod CIDRs of this cluster; none: those that its nodes name.
    pub pod_cidrs: Vec<String>,
    /// Whether pods use Liqo's gateways: then Liqo determines and remaps pod CIDRs.
    pub liqo_network: bool,
    /// Naming of namespaces on donors.
    pub mapping: NamespaceMapping,
    /// How long a silent donor may delay a removal before it counts as gone.
    pub donor_patience: Duration,
    /// Most idle virtual nodes kept for each donor.
    pub idle_nodes: usize,
    /// How long pods on a virtual node may take to end when the lease ends.
    pub drain_patience: Duration,
    /// Tenant of namespaces that name none; empty: none.
    pub default_tenant: String,
}

impl Default for OriginSettings {
    fn default() -> Self {
        Self {
            liqo_namespace: "liqo".to_owned(),
            agent_namespace: "comity-system".to_owned(),
            pod_cidrs: Vec::new(),
            liqo_network: false,
            mapping: NamespaceMapping::default(),
            donor_patience: Duration::from_secs(30),
            idle_nodes: MAX_IDLE_SLICES,
            drain_patience: Duration::from_secs(40),
            default_tenant: String::new(),
        }
    }
}

/// Drives this cluster's Liqo as a borrower. Cheap to clone.
#[derive(Clone)]
pub struct LiqoOrigin {
    client: Client,
    settings: OriginSettings,
    /// Held while a namespace's offer is computed and written: leases for one namespace may start and end concurrently.
    offers: Arc<Mutex<()>>,
    /// Held while the namespaces of virtual nodes are listed and written.
    node_namespaces: Arc<Mutex<()>>,
    /// This cluster's Liqo id; read once, because Liqo never changes it.
    own_id: Arc<OnceCell<String>>,
}

impl std::fmt::Debug for LiqoOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiqoOrigin").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl LiqoOrigin {
    /// Works on the cluster behind `client`.
    #[must_use]
    pub fn new(client: Client, settings: OriginSettings) -> Self {
        Self { client, settings, offers: Arc::default(), node_namespaces: Arc::default(), own_id: Arc::default() }
    }

    fn namespaced(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        dynamic::namespaced(&self.client, kind, namespace)
    }

    fn cluster_wide(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), kind)
    }

    /// This cluster's Liqo id.
    async fn own_id(&self) -> Result<&str, DeliveryError> {
        let read = || own_id(&self.client, &self.settings.liqo_namespace);
        self.own_id.get_or_try_init(read).await.map(String::as_str)
    }
}

async fn own_id(client: &Client, liqo_namespace: &str) -> Result<String, DeliveryError> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), liqo_namespace);
    let operation = format!("read ConfigMap {liqo_namespace}/{CLUSTER_ID_MAP}, which Liqo makes");
    let map = call(&operation, maps.get(CLUSTER_ID_MAP)).await?;
    let id = map.data.as_ref().and_then(|data| data.get(CLUSTER_ID_KEY)).map(String::as_str).unwrap_or_default();
    if is_dns_label(id) {
        return Ok(id.to_owned());
    }
    let message = format!("{CLUSTER_ID_KEY} in ConfigMap {liqo_namespace}/{CLUSTER_ID_MAP} is {id:?}, not a DNS label");
    Err(DeliveryError::permanent("liqo-cluster-id", message))
}
