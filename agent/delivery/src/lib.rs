//! Delivers leases: the donor prepares its cluster and issues a credential, the origin accepts it.
//!
//! Namespaces and virtual nodes each have two traits, one for each side; implementations are beside this file. No
//! implementation issues a credential that reaches beyond its lease's namespace, or removes what the caller did not
//! name.

mod agent_restriction;
mod credential;
mod guest_policies;
mod https;
mod kubeconfig;
mod lease_nodes;
mod lease_sharing;
pub mod namespace;
mod namespace_clients;
mod node_cleaner;
pub mod origin_file;
pub mod origin_secret;
mod probe;
pub mod virtual_node;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::forward_target::client_check::ClientCheck;
use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::placement::Placement;
use comity_agent_model::lease::target_namespace::DEFAULT_TARGET_NAMESPACE;
use comity_runtime::SecretString;
use comity_types::LeaseId;
use futures::future::BoxFuture;

pub use credential::{ApiCredential, Credential, CredentialKind, MAX_CREDENTIAL_BYTES, VirtualNodeGrant};
pub use guest_policies::{GuestPolicies, PolicyProblems};
pub use kubeconfig::render as render_kubeconfig;
pub use namespace::NamespaceDelivery;
pub use node_cleaner::{CLEANING_NAMESPACE, NodeCleaner};
pub use origin_file::OriginFile;
pub use origin_secret::OriginSecret;
pub use virtual_node::{LentNode, NodeBorrower, NodeLender, VirtualNodeDonor, VirtualNodeOrigin, VirtualNodes};

/// A lease as the donor's delivery needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct DonorLease {
    /// Its id.
    pub lease_id: LeaseId,
    /// Tenant charged.
    pub tenant: String,
    /// Borrowing cluster.
    pub origin: String,
    /// Namespace there whose pods use it; empty: the default one.
    pub target_namespace: String,
    /// Nodes (salted hashes, as in this cluster's own offer) and devices, resource name and count.
    pub placement: Placement,
    /// The demand: number of shares, and amounts per share.
    pub gpus: GpuDemand,
    /// Fencing token, already checked by the caller.
    pub fencing_token: u64,
    /// Latest expiry of its credentials, in milliseconds since 1970.
    pub ends_at_ms: u64,
}

/// Total CPU and memory of a lease that requests none, so that its pods can run.
const FLOOR_CPU_MILLI: u64 = 100;
const FLOOR_MEMORY_MIB: u64 = 256;

impl DonorLease {
    /// CPU that its pods share, in thousandths of a core.
    #[must_use]
    pub fn cpu_milli(&self) -> u64 {
        let nodes = self.placement.nodes.iter();
        nodes.fold(0, |sum: u64, node| sum.saturating_add(node.cpu_milli)).max(FLOOR_CPU_MILLI)
    }

    /// Memory that its pods share, in MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        let nodes = self.placement.nodes.iter();
        nodes.fold(0, |sum: u64, node| sum.saturating_add(node.memory_mib)).max(FLOOR_MEMORY_MIB)
    }

    /// The namespace at the origin that the request names, or the default one.
    pub(crate) fn namespace(&self) -> &str {
        target_or_default(&self.target_namespace)
    }

    /// Total virtual functions of RDMA networks, by resource name.
    pub(crate) fn functions(&self) -> BTreeMap<&str, u64> {
        self.placement.functions()
    }
}

/// A lease as the origin's delivery needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginLease {
    /// Its id.
    pub lease_id: LeaseId,
    /// Tenant that may use it.
    pub tenant: String,
    /// Lending cluster.
    pub donor: String,
    /// Namespace on the origin for the kubeconfig Secret.
    pub target_namespace: String,
    /// When the lease ends unless renewed, in milliseconds since 1970; 0 before it is active.
    pub expires_at_ms: u64,
}

impl OriginLease {
    /// The namespace that the request names, or the default one.
    fn namespace(&self) -> &str {
        target_or_default(&self.target_namespace)
    }
}

fn target_or_default(namespace: &str) -> &str {
    if namespace.is_empty() { DEFAULT_TARGET_NAMESPACE } else { namespace }
}

/// Result of preparing the donor's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Namespace on the donor.
    pub namespace: String,
}

/// Result of accepting a lease on the origin.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Name of the Secret, or of the file in the folder `kubeconfigs`, that holds the kubeconfig.
    pub secret_name: String,
    /// The kubeconfig itself, for the agent's local API.
    pub kubeconfig: SecretString,
}

/// The donor's side of leases by namespace.
pub trait DonorDelivery: Send + Sync {
    /// Creates or repairs all objects of the lease; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>>;

    /// Issues a credential that expires no later than the lease; called again before it expires, and after a renewal of
    /// the lease.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<ApiCredential, DeliveryError>>;

    /// Sets the lease's marks again on those of its nodes that are there: a Node object that was made again has none.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn reopen<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes all objects of the lease, and returns when they are gone; idempotent, also for a lease never prepared.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>>;

    /// Ids of all leases that have objects here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>>;

    /// Target of the fabric's API port: the API server, or the API of a host without Kubernetes.
    fn api_target(&self) -> ForwardTarget;
}

/// The origin's side of leases by namespace.
pub trait OriginDelivery: Send + Sync {
    /// Writes the kubeconfig; idempotent. `server` is the host and port that lead into the tunnel.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a ApiCredential,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Accepted, DeliveryError>>;

    /// The pods that may use the lease's port; `None` where there are no pods.
    fn clients(&self, lease: &OriginLease) -> Option<Arc<dyn ClientCheck>>;

    /// Checks that the donor's API answers through the fabric with this credential.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn probe<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a ApiCredential,
        local_api: SocketAddr,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes all objects of the lease, and returns when they are gone; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>>;

    /// Ids of all leases that have objects here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>>;
}
