//! How a lease reaches the origin: what the donor's agent makes on its own cluster, and what the origin's agent does
//! with the credential that it gets for it.
//!
//! Two traits, one a side, for namespaces, and two for virtual nodes; the rest of the agent knows nothing of
//! Kubernetes. Implementations live beside this file. What no implementation ever does: give a credential that reaches
//! beyond its lease's namespace, or tear down what the caller did not name.

mod credential;
pub mod echo;
mod https;
mod kubeconfig;
pub mod namespace;
pub mod origin_file;
pub mod origin_secret;
mod probe;
pub mod virtual_node;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use comity_proto::v1;
use comity_runtime::SecretString;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::fabric::ForwardTarget;
pub use crate::liqo::donor::{Grant, Grants};
use crate::model::delivery_error::DeliveryError;

pub use crate::fabric::API_PORT;
pub use credential::{ApiCredential, Credential, CredentialKind, MAX_CREDENTIAL_BYTES, VirtualNodeGrant};
pub use echo::EchoDelivery;
pub use namespace::NamespaceDelivery;
pub use origin_file::OriginFile;
pub use origin_secret::OriginSecret;
pub use virtual_node::{
    Authentication, LentNode, NodeLender, NodeService, VirtualNodeDonor, VirtualNodeOrigin, VirtualNodes,
};

/// Label with the tenant.
pub(crate) const TENANT_LABEL: &str = "comity.dev/tenant";

/// How a lease reaches the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryKind {
    /// A namespace of the donor, and a kubeconfig for it.
    #[default]
    Namespace,
    /// A node of the origin that stands for what was leased.
    VirtualNode,
}

impl DeliveryKind {
    /// That of a lease; a broker that says nothing knows only namespaces.
    #[must_use]
    pub fn of(lease: &v1::Lease) -> Self {
        match lease.delivery() {
            v1::Delivery::VirtualNode => Self::VirtualNode,
            v1::Delivery::Namespace | v1::Delivery::Unspecified => Self::Namespace,
        }
    }
}

/// What the donor's agent must know to deliver a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct DonorLease {
    /// "lease-N".
    pub lease_id: String,
    /// Tenant that is accounted for it.
    pub tenant: String,
    /// Cluster that borrows.
    pub origin: String,
    /// Nodes (salted hashes, as in this cluster's own offer) and devices, resource name and count.
    pub placement: v1::Placement,
    /// What was asked for: amounts per share and the topology.
    pub gpus: v1::GpuDemand,
    /// Fencing token, already checked by the caller.
    pub fencing_token: u64,
    /// Latest time, in milliseconds since 1970, up to which a credential for it may be good.
    pub ends_at_ms: u64,
}

impl DonorLease {
    /// Virtual functions of RDMA networks that it has in all, by the resource that counts them.
    pub(crate) fn functions(&self) -> BTreeMap<&str, u64> {
        functions(&self.placement)
    }
}

/// Virtual functions of RDMA networks that a placement takes in all, by the resource that counts them.
pub(crate) fn functions(placement: &v1::Placement) -> BTreeMap<&str, u64> {
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let taken = placement.nodes.iter().flat_map(|node| &node.rdma).filter(|rdma| !rdma.resource.is_empty());
    for rdma in taken {
        let count = functions.entry(&rdma.resource).or_default();
        *count = count.saturating_add(rdma.functions.into());
    }
    functions
}

/// What the origin's agent must know to hand a lease on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginLease {
    /// "lease-N".
    pub lease_id: String,
    /// Tenant that may use it.
    pub tenant: String,
    /// Cluster that lends.
    pub donor: String,
    /// Namespace on the origin for the kubeconfig Secret.
    pub target_namespace: String,
    /// When the lease ends unless renewed, in milliseconds since 1970; 0 before it is active.
    pub expires_at_ms: u64,
}

/// The donor's side is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Namespace on the donor.
    pub namespace: String,
}

/// The origin's side is there.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Name of the Secret (or file) that holds the kubeconfig.
    pub secret_name: String,
    /// The kubeconfig itself, for the agent's local API.
    pub kubeconfig: SecretString,
}

/// What the donor's agent does for a lease on its own cluster, as a namespace.
pub trait DonorDelivery: Send + Sync {
    /// Makes or repairs everything; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>>;

    /// A fresh credential that ends no later than the lease; called again before it ends, and when the lease was
    /// renewed.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<ApiCredential, DeliveryError>>;

    /// Removes everything and returns only when it is gone; idempotent; also for a lease that was never prepared.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(&'a self, lease_id: &'a str) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>>;

    /// Where the fabric's port for donors leads: the API server, or the echo API.
    fn api_target(&self) -> ForwardTarget;
}

/// What the origin's agent does with a credential for a namespace.
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

    /// Removes everything and returns only when it is gone; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(&'a self, lease_id: &'a str) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>>;
}
