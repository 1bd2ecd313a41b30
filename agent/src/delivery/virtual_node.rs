//! A lease as a node of the origin: what each side does for it on its own cluster, through Liqo.
//!
//! The key exchange belongs to the peering and comes first; then, for each lease, the donor grants and the origin asks
//! for exactly that. Grants themselves are not handed over here: they follow from the donor's records
//! ([`Grants`](super::Grants)).

mod donor;
mod nodes;
mod origin;
mod resources;

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_proto::v1;
use futures::future::BoxFuture;
use ipnet::Ipv4Net;

pub use donor::NodeLender;
pub use resources::granted;

use crate::delivery::{DonorLease, Grant, OriginLease, VirtualNodeGrant};
use crate::liqo::donor::Minted;
use crate::liqo::network::LiqoNetwork;
use crate::liqo::{Challenge, IdentityParams, LiqoPeer, TenantRequest};
use crate::model::delivery_error::DeliveryError;

/// What a donor has for the virtual node of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentNode {
    /// What it may have.
    pub grant: Grant,
    /// ResourceSlices of ended leases of the same origin, whose virtual nodes wait for another: names, in order.
    pub idle: Vec<String>,
}

/// What the donor's agent does for virtual nodes on its own cluster.
pub trait VirtualNodeDonor: Send + Sync {
    /// Makes, or finds again, what the origin has to sign.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn challenge<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<Challenge, DeliveryError>>;

    /// Takes the origin on as a tenant of this cluster's Liqo; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn admit_tenant<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        request: &'a TenantRequest,
    ) -> BoxFuture<'a, Result<IdentityParams, DeliveryError>>;

    /// Makes a token for the origin, to be replaced after `rotation_ms`; the `first` one of a peering takes the origin
    /// on.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn mint_token<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        first: bool,
        rotation_ms: u64,
    ) -> BoxFuture<'a, Result<Minted, DeliveryError>>;

    /// Removes the tenant and everything of it, and returns only when it is gone; idempotent; also when the origin is
    /// dead.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove_tenant<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// What the lease's virtual node may have; readies the nodes that its pods may run on; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn prepare<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a DonorLease,
    ) -> BoxFuture<'a, Result<LentNode, DeliveryError>>;

    /// Waits until the grant of a slice that the records hold is in effect: a slice that comes before would be refused.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn in_force<'a>(&'a self, slice: &'a str, grant: &'a Grant) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ends what runs under a lease whose grant is not in force any more, and returns only when it is gone; idempotent.
    /// Its slice, empty now, may stay for the next lease. `tenant_namespace` is that of its origin, where it is known.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(
        &'a self,
        lease_id: &'a str,
        slice: &'a str,
        tenant_namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>>;
}

/// What the origin's agent does for virtual nodes on its own cluster.
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

    /// Makes the identity with which this cluster's Liqo calls the donor; idempotent. `api_server` is what the donor's
    /// signed bundle says: Liqo is sent nowhere else.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept_identity<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        api_server: &'a str,
        params: &'a IdentityParams,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes the identity and everything of it; idempotent; also when the donor is dead.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove_identity<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Asks the donor's Liqo for the grant, and makes the node that stands for it. Its name.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<String, DeliveryError>>;

    /// Checks that the node is ready and has what was granted.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn probe<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes everything of a lease, and returns only when it is gone; idempotent; also when the donor is dead.
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

/// Both sides, on a cluster that has Liqo.
#[derive(Clone)]
pub struct VirtualNodes {
    /// As a donor.
    pub donor: Arc<dyn VirtualNodeDonor>,
    /// As an origin.
    pub origin: Arc<dyn VirtualNodeOrigin>,
    /// The network between this cluster's Liqo and others', where it carries pods.
    pub network: LiqoNetwork,
}

/// How origins prove to a donor's API server who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Whether a peering that begins goes by token; otherwise Liqo's keys are exchanged. One that stands stays as it
    /// is.
    pub by_token: bool,
    /// How long a token is used until the next one comes, in milliseconds.
    pub rotation_ms: u64,
}

impl Default for Authentication {
    fn default() -> Self {
        Self { by_token: false, rotation_ms: 2_400_000 }
    }
}

/// Whether virtual nodes can be lent and borrowed now, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeService {
    /// As a donor.
    pub lends: Result<(), String>,
    /// As an origin.
    pub borrows: Result<(), String>,
    /// As a donor: how origins prove who they are.
    pub authentication: Authentication,
    /// Only where both fabrics route pods.
    pub needs_tun: bool,
    /// Networks that other clusters' pods may have addresses in; empty: any that is not this cluster's.
    pub peer_networks: Vec<Ipv4Net>,
}

impl NodeService {
    /// Neither, for one reason.
    #[must_use]
    pub fn none(reason: &str) -> Self {
        Self {
            lends: Err(reason.to_owned()),
            borrows: Err(reason.to_owned()),
            authentication: Authentication::default(),
            needs_tun: true,
            peer_networks: Vec::new(),
        }
    }

    /// Deliveries that an offer announces.
    #[must_use]
    pub fn deliveries(&self) -> Vec<v1::Delivery> {
        let node = self.lends.is_ok().then_some(v1::Delivery::VirtualNode);
        std::iter::once(v1::Delivery::Namespace).chain(node).collect()
    }
}
