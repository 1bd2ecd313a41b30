//! The origin's side of virtual nodes.

use std::collections::BTreeSet;

use comity_agent_liqo::origin::{LiqoOrigin, SliceRequest};
use comity_agent_liqo::{Challenge, IdentityParams, LiqoPeer, TenantRequest};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::LeaseId;
use futures::future::BoxFuture;

use super::VirtualNodeOrigin;
use crate::guest_policies::GuestPolicies;
use crate::{OriginLease, VirtualNodeGrant};

/// Borrows nodes through this cluster's Liqo, and only while the policies of origins are there.
pub struct NodeBorrower {
    liqo: LiqoOrigin,
    policies: GuestPolicies,
}

impl NodeBorrower {
    /// Borrows through `liqo`; `policies` checks the same cluster.
    #[must_use]
    pub const fn new(liqo: LiqoOrigin, policies: GuestPolicies) -> Self {
        Self { liqo, policies }
    }
}

impl VirtualNodeOrigin for NodeBorrower {
    fn check_policies(&self) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(async { self.policies.check_origin().await.map(drop) })
    }

    fn answer<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        challenge: &'a Challenge,
    ) -> BoxFuture<'a, Result<TenantRequest, DeliveryError>> {
        Box::pin(self.liqo.answer(peer, challenge))
    }

    fn accept_identity<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        api_server: &'a str,
        params: &'a IdentityParams,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.liqo.accept_identity(peer, api_server, params))
    }

    fn remove_identity<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.liqo.remove_identity(peer))
    }

    fn accept<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<String, DeliveryError>> {
        Box::pin(async move {
            let request = SliceRequest {
                lease_id: lease.lease_id,
                slice: grant.slice.clone(),
                resources: grant.resources.clone(),
                target_namespace: lease.namespace().to_owned(),
                tenant: lease.tenant.clone(),
            };
            self.liqo.accept(peer, &request).await?;
            // The slice, the virtual node and the Node have one name.
            Ok(grant.slice.clone())
        })
    }

    fn probe<'a>(
        &'a self,
        _peer: &'a LiqoPeer,
        lease: &'a OriginLease,
        _grant: &'a VirtualNodeGrant,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.liqo.ready(lease.lease_id))
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(self.liqo.remove(lease_id))
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(self.liqo.list())
    }
}
