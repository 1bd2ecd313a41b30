//! Delivers leases as nodes of the origin, through Liqo.
//!
//! The key exchange comes first, once per peering. For each lease the donor grants resources, which take effect through
//! its records ([`Grants`](comity_agent_liqo::donor::Grants)), and the origin requests exactly these.

mod donor;
mod origin;
mod resources;

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_liqo::donor::{Grant, Minted};
use comity_agent_liqo::network::LiqoNetwork;
use comity_agent_liqo::{Challenge, IdentityParams, LiqoPeer, TenantRequest};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::LeaseId;
use futures::future::BoxFuture;

pub use donor::NodeLender;
pub use origin::NodeBorrower;
pub use resources::granted;

use crate::{DonorLease, OriginLease, VirtualNodeGrant};

/// The grant of a donor for a virtual node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentNode {
    /// Its grant.
    pub grant: Grant,
    /// Names of idle ResourceSlices of the same origin, whose virtual nodes can be reused; ordered.
    pub idle: Vec<String>,
}

/// The donor's side of virtual nodes.
pub trait VirtualNodeDonor: Send + Sync {
    /// Makes or finds the challenge that the origin signs.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn challenge<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<Challenge, DeliveryError>>;

    /// Makes the origin a tenant of this cluster's Liqo; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn admit_tenant<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        request: &'a TenantRequest,
    ) -> BoxFuture<'a, Result<IdentityParams, DeliveryError>>;

    /// Makes the origin a tenant, and issues its first token, to be replaced after `rotation_ms`.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn admit_by_token<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        rotation_ms: u64,
    ) -> BoxFuture<'a, Result<Minted, DeliveryError>>;

    /// Issues a token for an admitted origin, to be replaced after `rotation_ms`.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn mint_token<'a>(&'a self, peer: &'a LiqoPeer, rotation_ms: u64) -> BoxFuture<'a, Result<Minted, DeliveryError>>;

    /// Removes the tenant with all its objects, and returns when they are gone; idempotent, also if the origin is dead.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove_tenant<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Computes the lease's grant, and marks the nodes that its pods may run on, if there are several; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn prepare<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a DonorLease,
    ) -> BoxFuture<'a, Result<LentNode, DeliveryError>>;

    /// Marks those of the lease's nodes that are there again: a Node object that was made again has no marks.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn reopen<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Waits until a stored grant is in effect: a slice that arrives earlier would be refused.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn in_force<'a>(&'a self, slice: &'a str, grant: &'a Grant) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes all pods of a lease whose grant has ended, and returns when they are gone; idempotent. The empty slice
    /// may stay for the next lease. `tenant_namespace` is the origin's, if known.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(
        &'a self,
        lease_id: LeaseId,
        slice: &'a str,
        tenant_namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of all leases that have objects here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>>;
}

/// The origin's side of virtual nodes.
pub trait VirtualNodeOrigin: Send + Sync {
    /// Signs the donor's challenge.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn answer<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        challenge: &'a Challenge,
    ) -> BoxFuture<'a, Result<TenantRequest, DeliveryError>>;

    /// Makes the identity with which this cluster's Liqo calls the donor; idempotent. `api_server`, from the donor's
    /// signed bundle, is the only server that Liqo may call.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept_identity<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        api_server: &'a str,
        params: &'a IdentityParams,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes the identity with all its objects; idempotent, also if the donor is dead.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove_identity<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Checks the policies that hold this cluster's pods and namespaces to its leases. Nothing new is offloaded without
    /// them; what is offloaded stays.
    ///
    /// # Errors
    /// A permanent error that names the file to apply, or a temporary one if the API server does not answer.
    fn check_policies(&self) -> BoxFuture<'_, Result<(), DeliveryError>>;

    /// Requests the grant from the donor's Liqo, and makes the virtual node. Returns the node's name.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<String, DeliveryError>>;

    /// Checks that the node is ready and has the granted resources.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn probe<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes all objects of a lease, and returns when they are gone; idempotent, also if the donor is dead.
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

/// Both sides of a cluster with Liqo.
#[derive(Clone)]
pub struct VirtualNodes {
    /// Donor's side.
    pub donor: Arc<dyn VirtualNodeDonor>,
    /// Origin's side.
    pub origin: Arc<dyn VirtualNodeOrigin>,
    /// The network between Liqos, if it carries pods.
    pub network: LiqoNetwork,
}
