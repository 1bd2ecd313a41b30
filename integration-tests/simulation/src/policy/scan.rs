//! Nodes in order of name, for policies that scan them all for each task.

use comity_core::packing::{NodeState, Shape, Task};

use crate::trace::Trace;

/// A node and its free resources.
#[derive(Clone, Debug)]
pub(super) struct ScannedNode {
    pub(super) shape: Shape,
    pub(super) free: NodeState,
}

impl ScannedNode {
    pub(super) fn fits(&self, task: &Task) -> bool {
        task.takes(self.shape.kind) && self.free.fits(task)
    }

    /// Candidate device levels of a task: the distinct levels for one device, a single entry for none or several.
    pub(super) fn levels(&self, task: &Task) -> Vec<u16> {
        if task.devices == 1 { self.free.levels(task.milli).collect() } else { vec![0] }
    }
}

pub(super) fn nodes(trace: &Trace) -> Vec<ScannedNode> {
    trace.nodes.values().map(|shape| ScannedNode { shape: shape.clone(), free: shape.idle() }).collect()
}

pub(super) fn clear(nodes: &mut [ScannedNode]) {
    for node in nodes {
        node.free = node.shape.idle();
    }
}
