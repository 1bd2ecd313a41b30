//! The memory that an offer takes on each broker. Counted as if no two devices were equal, so that it does not depend on
//! what can be shared.

use comity_types::ClusterId;

use crate::model::inventory::{Device, Node, Offer, Sharing};
use crate::model::limits::MAX_OFFER_BYTES;
use crate::model::refusal::{Code, Refusal};

/// Bytes that a node, a device or an entry of a table counts beside its text.
const BYTES_PER_ENTRY: usize = 64;

impl Offer {
    /// Bytes that all nodes count.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.values().map(Node::bytes).sum()
    }
}

impl Node {
    /// Bytes that the node counts, devices and wiring included.
    pub(crate) fn bytes(&self) -> usize {
        let wiring = &self.wiring;
        let entries = 1 + wiring.numa.len() + wiring.rdma_gbits.len() + wiring.rdma_functions.len();
        let networks: usize = wiring.rdma_gbits.keys().chain(wiring.rdma_functions.keys()).map(String::len).sum();
        let resources: usize = wiring.rdma_functions.values().map(|functions| functions.resource.len()).sum();
        let devices: usize = self.devices.iter().map(Device::bytes).sum();
        entries * BYTES_PER_ENTRY + networks + resources + devices
    }
}

impl Device {
    fn bytes(&self) -> usize {
        let texts = [
            &self.product_name,
            &self.architecture,
            &self.cuda_compute_capability,
            &self.driver_version,
            &self.resource_name,
        ];
        let texts: usize = texts.into_iter().map(String::len).sum();
        let clique = self.wiring.nvlink.as_ref().map_or(0, String::len);
        let fault = self.fault.as_ref().map_or(0, |fault| BYTES_PER_ENTRY + fault.message.len());
        let instances = match &self.sharing {
            Sharing::Mig { instances, layout } => {
                instances.len() + layout.as_ref().map_or(0, |layout| layout.instances.len())
            }
            Sharing::Exclusive | Sharing::TimeSlicing { .. } | Sharing::Mps { .. } | Sharing::Fractional { .. } => 0,
        };
        (1 + instances) * BYTES_PER_ENTRY + texts + clique + fault
    }
}

/// Refuses an offer that would count `bytes`.
pub(crate) fn check_offer_size(bytes: usize, cluster: &ClusterId) -> Result<(), Refusal> {
    if bytes <= MAX_OFFER_BYTES {
        return Ok(());
    }
    let reason = format!(
        "the devices of cluster {cluster} would take {bytes} bytes of memory on each broker, allowed are \
         {MAX_OFFER_BYTES}"
    );
    let remedy = "offer fewer devices, or let several clusters offer them";
    Err(Refusal::new(Code::LimitReached, reason, remedy).at("offer.nodes", bytes))
}
