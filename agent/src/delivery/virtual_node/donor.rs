//! The donor's side, as the steps see it: Liqo's tenants, and the nodes that their pods may run on.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::nodes::LeaseNodes;
use super::{VirtualNodeDonor, granted};
use crate::delivery::{DeliveryError, DonorLease, Grant};
use crate::liqo::donor::LiqoDonor;
use crate::liqo::{Challenge, IdentityParams, LiqoPeer, TENANT_NAMESPACE_PREFIX, TenantRequest};
use crate::observe::NodeSalt;

/// How long the policies are given to let a lease in: they were seen to need well under a second.
const POLICIES_PATIENCE: Duration = Duration::from_secs(15);

/// Lends virtual nodes.
pub struct NodeLender {
    liqo: LiqoDonor,
    nodes: LeaseNodes,
    /// Leases that the policies let in.
    in_force: watch::Receiver<BTreeSet<String>>,
}

impl NodeLender {
    /// Lends nodes of the cluster behind `client`; `in_force` tells which leases its admission policies let in.
    #[must_use]
    pub const fn new(
        client: kube::Client,
        liqo: LiqoDonor,
        salt: NodeSalt,
        in_force: watch::Receiver<BTreeSet<String>>,
    ) -> Self {
        Self { liqo, nodes: LeaseNodes::new(client, salt), in_force }
    }

    async fn wait_until_in_force(&self, lease_id: &str) -> Result<(), DeliveryError> {
        let mut in_force = self.in_force.clone();
        let waited = tokio::time::timeout(POLICIES_PATIENCE, in_force.wait_for(|leases| leases.contains(lease_id)));
        match waited.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                let reason = format!("not done after {} s", POLICIES_PATIENCE.as_secs());
                Err(DeliveryError::temporary(format!("let {lease_id} through the admission policies"), reason))
            }
        }
    }
}

impl VirtualNodeDonor for NodeLender {
    fn challenge<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<Challenge, DeliveryError>> {
        Box::pin(self.liqo.challenge(peer))
    }

    fn admit_tenant<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        request: &'a TenantRequest,
    ) -> BoxFuture<'a, Result<IdentityParams, DeliveryError>> {
        Box::pin(self.liqo.admit_tenant(peer, request))
    }

    fn remove_tenant<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.liqo.remove_tenant(peer))
    }

    fn prepare<'a>(&'a self, peer: &'a LiqoPeer, lease: &'a DonorLease) -> BoxFuture<'a, Result<Grant, DeliveryError>> {
        Box::pin(async move {
            let resources = granted(lease)?;
            let selection = self.nodes.select(lease).await?;
            Ok(Grant {
                origin_liqo_id: peer.liqo_id.clone(),
                resources,
                node_selector: selection.selector,
                node_labels: selection.shown,
            })
        })
    }

    fn in_force<'a>(&'a self, lease_id: &'a str) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.wait_until_in_force(lease_id))
    }

    fn remove<'a>(
        &'a self,
        lease_id: &'a str,
        tenant_namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async move {
            if let Some(liqo_id) =
                tenant_namespace.and_then(|namespace| namespace.strip_prefix(TENANT_NAMESPACE_PREFIX))
            {
                let (peering, cluster) = (String::new(), String::new());
                let peer = LiqoPeer { peering, cluster, liqo_id: liqo_id.to_owned() };
                self.liqo.drain_lease(&peer, lease_id).await?;
            }
            self.nodes.release(lease_id).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>> {
        Box::pin(self.nodes.leases())
    }
}
