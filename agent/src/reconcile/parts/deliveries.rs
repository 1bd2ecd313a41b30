//! Deliveries of leases on this cluster, as origin and as donor.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::{DonorDelivery, NodeCleaner, OriginDelivery, PolicyProblems, VirtualNodes};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_service::NodeService;
use comity_types::{Delivery, LeaseId};
use ipnet::Ipv4Net;
use tokio::sync::watch;

use crate::config::AccessSettings;
use crate::mig::mig_book::{LeaseCut, MigBook};

/// How long one step waits for MIG instances: less than the step's deadline. It is tried again while the hold lasts.
const CUT_PATIENCE: Duration = Duration::from_secs(40);

/// Both deliveries, each with both sides.
pub struct Deliveries {
    /// `sharing.enabled`: whether this cluster lends. Otherwise nothing is offered: requests would be placed here and
    /// refused, time and again.
    pub lends: bool,
    /// The donor's side of namespaces.
    pub donor: Arc<dyn DonorDelivery>,
    /// The origin's side of namespaces.
    pub origin: Arc<dyn OriginDelivery>,
    /// Where tenants reach borrowed clusters.
    pub access: AccessSettings,
    /// Both sides of virtual nodes, where this cluster has Liqo.
    pub virtual_nodes: Option<VirtualNodes>,
    /// Policies of guests that are not in force. While there are any, nothing is offered.
    pub guest_policies: watch::Receiver<PolicyProblems>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub node_service: watch::Receiver<NodeService>,
    /// Progress of leases whose MIG instances are cut, where the agent cuts them.
    pub mig: Option<watch::Receiver<MigBook>>,
    /// Cleans nodes after leases, where the donor asks for it.
    pub cleaner: Option<NodeCleaner>,
}

impl Deliveries {
    /// How this cluster can deliver leases now.
    pub(crate) fn offered(&self) -> Vec<Delivery> {
        offered(self.lends, &self.guest_policies.borrow(), &self.node_service.borrow())
    }

    /// Both sides of virtual nodes.
    ///
    /// # Errors
    /// A temporary error without Liqo.
    pub(crate) fn virtual_nodes(&self) -> Result<&VirtualNodes, DeliveryError> {
        let missing = || {
            let reason = "this agent does not use Liqo now; set liqo.enabled until its objects are removed";
            DeliveryError::temporary("serve a virtual node", reason)
        };
        self.virtual_nodes.as_ref().ok_or_else(missing)
    }

    /// Waits until the MIG instances of a lease exist.
    ///
    /// # Errors
    /// A permanent error if they will not, a temporary one if that takes long.
    pub(crate) async fn wait_until_cut(&self, lease: LeaseId) -> Result<(), DeliveryError> {
        let Some(mut book) = self.mig.clone() else { return Ok(()) };
        let is_decided =
            |book: &MigBook| matches!(book.leases.get(&lease), Some(LeaseCut::Ready | LeaseCut::Refused(_)));
        let decided = tokio::time::timeout(CUT_PATIENCE, book.wait_for(is_decided)).await;
        let cut = match decided {
            Ok(Ok(book)) => book.leases.get(&lease).cloned(),
            Ok(Err(_)) | Err(_) => self.mig.as_ref().and_then(|book| book.borrow().leases.get(&lease).cloned()),
        };
        match cut {
            Some(LeaseCut::Ready) => Ok(()),
            Some(LeaseCut::Refused(refusal)) => Err(DeliveryError::permanent(refusal.code, refusal.message)),
            Some(LeaseCut::Waiting(reason)) => Err(DeliveryError::temporary("wait for MIG instances", reason)),
            None => Err(DeliveryError::temporary("wait for MIG instances", "they are not planned yet")),
        }
    }

    /// Networks in which other clusters' pods keep their addresses.
    pub(crate) fn peer_networks(&self) -> Vec<Ipv4Net> {
        self.node_service.borrow().peer_networks.clone()
    }
}

/// While there are problems, guests beyond those that run would be held by nothing, in either delivery.
fn offered(lends: bool, problems: &PolicyProblems, service: &NodeService) -> Vec<Delivery> {
    if lends && problems.is_empty() { service.deliveries() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_offered_while_a_policy_of_guests_is_not_in_force() {
        let service = NodeService { lends: Ok(()), ..NodeService::none("not lent") };
        assert_eq!(offered(true, &PolicyProblems::new(), &service).len(), 2);
        let missing = PolicyProblems::from([("comity-tenant", "it is absent".to_owned())]);
        assert!(offered(true, &missing, &service).is_empty());
    }

    #[test]
    fn a_cluster_that_does_not_lend_offers_nothing() {
        let service = NodeService { lends: Ok(()), ..NodeService::none("not lent") };
        assert!(offered(false, &PolicyProblems::new(), &service).is_empty());
    }
}
