//! Best fit: the node with the least free CPU and GPUs, weighed equally, and the fullest device that fits.

use comity_core::packing::Task;

use super::Policy;
use super::scan::{ScannedNode, clear, nodes};
use crate::trace::Trace;

/// Best fit as in the trace's paper.
#[derive(Debug)]
pub struct BestFit {
    nodes: Vec<ScannedNode>,
}

impl BestFit {
    /// Starts with idle nodes.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        Self { nodes: nodes(trace) }
    }
}

impl Policy for BestFit {
    fn restart(&mut self, _seed: u64) {
        clear(&mut self.nodes);
    }

    fn place(&mut self, task: &Task) -> bool {
        // Fractions of 128 cores and of 8 devices, over a common denominator.
        let left = |node: &ScannedNode| node.free.cpu_milli + 16 * node.free.device_milli();
        let best = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].fits(task))
            .min_by_key(|&node| (left(&self.nodes[node]), node));
        let Some(node) = best.map(|node| &mut self.nodes[node]) else { return false };
        let level = node.levels(task).first().copied().unwrap_or(0);
        let Some(next) = node.free.after(task, level) else { return false };
        node.free = next;
        true
    }
}
