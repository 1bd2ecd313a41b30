//! Usable views of nodes that may lend less than they offer: without quarantined devices and nodes, nodes that are not
//! ready, and NVLink cliques with a failed link. Derived from offers and failure records.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, NodeId};

use crate::model::health::NodeHealth;
use crate::model::inventory::{FaultClass, Node};
use crate::state::{Derived, State};

/// The nodes with a reduced usable view, by donor.
pub(crate) type Usable = BTreeMap<ClusterId, BTreeMap<NodeId, Node>>;

/// The usable view of `node`; `None` if the whole node is usable.
pub(crate) fn usable_view_of(node: &Node, health: Option<&NodeHealth>) -> Option<Node> {
    let barred = |index: u32| health.is_some_and(|health| health.device_until(index).is_some());
    let bars_node = node.schedulable && (!node.ready || health.is_some_and(|health| health.until().is_some()));
    let bars_some = (0_u32..).zip(&node.devices).any(|(index, device)| device.healthy && barred(index));
    let broken = broken_cliques(node);
    if !bars_node && !bars_some && broken.is_empty() {
        return None;
    }
    let mut used = node.clone();
    used.schedulable &= !bars_node;
    for (index, device) in (0_u32..).zip(&mut used.devices) {
        device.healthy &= !barred(index);
        if device.wiring.nvlink.as_deref().is_some_and(|clique| broken.contains(clique)) {
            device.wiring.nvlink = None;
        }
    }
    Some(used)
}

/// NVLink cliques of a node with a failed link. The whole clique counts as broken, because no report says which pairs
/// of devices still connect.
pub(crate) fn broken_cliques(node: &Node) -> BTreeSet<&str> {
    let failed =
        node.devices.iter().filter(|device| device.fault.as_ref().is_some_and(|fault| fault.class == FaultClass::Link));
    failed.filter_map(|device| device.wiring.nvlink.as_deref()).collect()
}

impl State {
    /// The usable view of a node in a donor's offer.
    #[must_use]
    pub fn usable_node(&self, donor: &ClusterId, id: &NodeId) -> Option<&Node> {
        let instead = self.derived.usable.get(donor).and_then(|nodes| nodes.get(id));
        instead.or_else(|| self.clusters.get(donor)?.offer.as_ref()?.nodes.get(id))
    }
}

impl Derived {
    /// Updates the usable view of a node.
    pub(crate) fn note_usable(
        &mut self,
        donor: &ClusterId,
        id: &NodeId,
        node: Option<&Node>,
        health: Option<&NodeHealth>,
    ) {
        match node.and_then(|node| usable_view_of(node, health)) {
            Some(used) => {
                self.usable.entry(donor.clone()).or_default().insert(id.clone(), used);
            }
            None => {
                if let Some(nodes) = self.usable.get_mut(donor) {
                    nodes.remove(id);
                    if nodes.is_empty() {
                        self.usable.remove(donor);
                    }
                }
            }
        }
    }
}
