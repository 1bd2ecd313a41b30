//! Capacity that a cluster can lend, as far as the checks need it.

use comity_agent_model::node_id::NodeSalt;

/// Nodes and devices of an inventory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) nodes: usize,
    pub(super) devices: usize,
}

/// Checks of an inventory need no ids that stay.
pub(super) fn any_salt() -> NodeSalt {
    NodeSalt::new([0; 32])
}
