//! Deliveries of leases on this cluster, as origin and as donor.

use std::sync::Arc;

use comity_agent_delivery::{DonorDelivery, OriginDelivery, VirtualNodes};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_service::NodeService;
use ipnet::Ipv4Net;
use tokio::sync::watch;

use crate::config::AccessSettings;

/// Both deliveries, each with both sides.
pub struct Deliveries {
    /// The donor's side of namespaces.
    pub donor: Arc<dyn DonorDelivery>,
    /// The origin's side of namespaces.
    pub origin: Arc<dyn OriginDelivery>,
    /// Where tenants reach borrowed clusters.
    pub access: AccessSettings,
    /// Both sides of virtual nodes, where this cluster has Liqo.
    pub virtual_nodes: Option<VirtualNodes>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub node_service: watch::Receiver<NodeService>,
}

impl Deliveries {
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

    /// Networks that other clusters' pods may have addresses in; empty: any that is not this cluster's.
    pub(crate) fn peer_networks(&self) -> Vec<Ipv4Net> {
        self.node_service.borrow().peer_networks.clone()
    }
}
