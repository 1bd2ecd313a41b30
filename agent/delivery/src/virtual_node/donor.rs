//! The donor's side of virtual nodes: Liqo's tenants, and the nodes that their pods may run on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_liqo::donor::{Grant, Grants, LiqoDonor, Minted};
use comity_agent_liqo::{Challenge, IdentityParams, LiqoPeer, TENANT_NAMESPACE_PREFIX, TenantRequest};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::{LentNode, VirtualNodeDonor, granted};
use crate::DonorLease;
use crate::guest_policies::{GuestPolicies, GuestPolicy};
use crate::lease_nodes::LeaseNodes;
use crate::lease_sharing::LeaseSharing;

/// Time limit for the admission policies to admit a lease; observed: well under a second.
const POLICIES_PATIENCE: Duration = Duration::from_secs(15);

/// Lends virtual nodes.
pub struct NodeLender {
    liqo: LiqoDonor,
    nodes: LeaseNodes,
    /// Grants that the policies admit.
    in_force: watch::Receiver<Arc<Grants>>,
    /// Whether the agent's webhook has pods counted on each node of a lease.
    counts_by_node: bool,
    /// `None` in tests.
    guests: Option<LabelledGuests>,
}

/// Labels of guests' namespaces, with the check of the policies that read them.
struct LabelledGuests {
    labels: GuestLabels,
    policies: GuestPolicies,
}

impl NodeLender {
    /// Lends nodes of the cluster behind `client`, one to a lease; `in_force` are the grants that its policies admit.
    #[must_use]
    pub const fn new(
        client: kube::Client,
        liqo: LiqoDonor,
        salt: NodeSalt,
        in_force: watch::Receiver<Arc<Grants>>,
    ) -> Self {
        Self { liqo, nodes: LeaseNodes::new(client, salt), in_force, counts_by_node: false, guests: None }
    }

    /// Lends only while the policies that these labels need are there.
    #[must_use]
    pub fn with_guest_labels(self, labels: GuestLabels, policies: GuestPolicies) -> Self {
        Self { guests: Some(LabelledGuests { labels, policies }), ..self }
    }

    /// Lends several nodes to a lease, too: the agent's webhook runs, without which the policies refuse such pods.
    #[must_use]
    pub fn with_webhook(self) -> Self {
        Self { counts_by_node: true, ..self }
    }

    /// Checks that pods can be counted on each node of a lease that they select by its label.
    fn check_counted(&self, lease: &DonorLease) -> Result<(), DeliveryError> {
        if self.counts_by_node {
            return Ok(());
        }
        Err(DeliveryError::permanent(
            "nodes-not-counted",
            format!(
                "{}: a virtual node on several nodes, or on one whose label kubernetes.io/hostname another node has, \
                 needs the section webhook in the donor's agent.yaml; ask with --same-node, or --delivery namespace",
                lease.lease_id
            ),
        ))
    }

    async fn wait_until_in_force(&self, slice: &str, grant: &Grant) -> Result<(), DeliveryError> {
        let mut in_force = self.in_force.clone();
        let waited =
            tokio::time::timeout(POLICIES_PATIENCE, in_force.wait_for(|grants| grants.0.get(slice) == Some(grant)));
        match waited.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                let reason = format!("not done after {} s", POLICIES_PATIENCE.as_secs());
                Err(DeliveryError::temporary(format!("make the admission policies admit slice {slice}"), reason))
            }
        }
    }
}

/// Checks that HAMi does not share the lease's devices in parts: its limits are those that a pod states, and pods of a
/// virtual node come from the origin as their authors wrote them. A pod that states none gets a whole device.
fn check_parts(lease: &DonorLease, sharing: &LeaseSharing) -> Result<(), DeliveryError> {
    if sharing.hami().is_none_or(|share| share.cores >= 100) {
        return Ok(());
    }
    Err(DeliveryError::permanent(
        "hami-virtual-node",
        format!(
            "{}: HAMi holds pods to parts of a GPU only in a lease's namespace; ask with --delivery namespace, or with \
             --selector \"device.sharing != 'fractional'\"",
            lease.lease_id
        ),
    ))
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

    fn admit_by_token<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        rotation_ms: u64,
    ) -> BoxFuture<'a, Result<Minted, DeliveryError>> {
        Box::pin(self.liqo.admit_by_token(peer, rotation_ms))
    }

    fn mint_token<'a>(&'a self, peer: &'a LiqoPeer, rotation_ms: u64) -> BoxFuture<'a, Result<Minted, DeliveryError>> {
        Box::pin(self.liqo.mint_token(peer, rotation_ms))
    }

    fn remove_tenant<'a>(&'a self, peer: &'a LiqoPeer) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.liqo.remove_tenant(peer))
    }

    fn prepare<'a>(
        &'a self,
        peer: &'a LiqoPeer,
        lease: &'a DonorLease,
    ) -> BoxFuture<'a, Result<LentNode, DeliveryError>> {
        Box::pin(async move {
            if let Some(LabelledGuests { labels, policies }) = &self.guests {
                policies.check_agent().await?;
                for policy in GuestPolicy::of_labels(labels) {
                    policies.check(policy).await?;
                }
            }
            let resources = granted(lease)?;
            check_parts(lease, &self.nodes.sharing(lease).await?)?;
            if lease.placement.nodes.len() > 1 {
                self.check_counted(lease)?;
            }
            let selection = self.nodes.select(lease).await?;
            if !selection.to_label.is_empty() {
                self.check_counted(lease)?;
                self.nodes.count(lease).await?;
            }
            let grant = Grant {
                origin_liqo_id: peer.liqo_id.clone(),
                namespace: lease.namespace().to_owned(),
                resources,
                node_selector: selection.selector,
                node_labels: selection.shown,
            };
            let idle = self.liqo.idle_slices(peer, &grant).await?;
            Ok(LentNode { grant, idle })
        })
    }

    fn reopen<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async move {
            self.nodes.relabel(lease).await?;
            self.nodes.count(lease).await
        })
    }

    fn in_force<'a>(&'a self, slice: &'a str, grant: &'a Grant) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.wait_until_in_force(slice, grant))
    }

    fn remove<'a>(
        &'a self,
        lease_id: LeaseId,
        slice: &'a str,
        tenant_namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async move {
            if let Some(liqo_id) =
                tenant_namespace.and_then(|namespace| namespace.strip_prefix(TENANT_NAMESPACE_PREFIX))
            {
                let (peering, cluster) = (String::new(), String::new());
                let peer = LiqoPeer { peering, cluster, liqo_id: liqo_id.to_owned() };
                self.liqo.drain_slice(&peer, slice).await?;
            }
            self.nodes.release(lease_id).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(self.nodes.leases())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_kubernetes::hami::HamiShare;
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::Placement;

    use super::*;

    #[test]
    fn parts_that_nobody_holds_pods_to_are_not_lent_as_a_node() {
        let lease = DonorLease {
            lease_id: LeaseId(7),
            tenant: "t".into(),
            origin: "o".into(),
            target_namespace: String::new(),
            placement: Placement::new("here".parse().unwrap()),
            gpus: GpuDemand::default(),
            fencing_token: 1,
            ends_at_ms: 0,
        };
        let hami = |cores| LeaseSharing::Hami(HamiShare { memory_mib: 1, cores, devices: BTreeSet::new() });
        let error = check_parts(&lease, &hami(95)).unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "hami-virtual-node", .. }), "{error}");
        for sharing in [hami(100), LeaseSharing::Mps, LeaseSharing::Counted] {
            check_parts(&lease, &sharing).unwrap();
        }
    }
}
