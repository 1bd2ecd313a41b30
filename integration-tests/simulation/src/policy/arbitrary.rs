//! Places tasks on a random node and a random device that fit.

use comity_core::packing::Task;

use super::Policy;
use super::scan::{ScannedNode, clear, nodes};
use crate::random::Random;
use crate::trace::Trace;

/// The random policy.
#[derive(Debug)]
pub struct Arbitrary {
    nodes: Vec<ScannedNode>,
    random: Random,
}

impl Arbitrary {
    /// Starts with idle nodes.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        Self { nodes: nodes(trace), random: Random::new(0) }
    }
}

impl Policy for Arbitrary {
    fn restart(&mut self, seed: u64) {
        clear(&mut self.nodes);
        self.random = Random::new(seed ^ 0x5eed);
    }

    fn place(&mut self, task: &Task) -> bool {
        let open: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].fits(task)).collect();
        if open.is_empty() {
            return false;
        }
        let node = &mut self.nodes[open[self.random.below(open.len())]];
        let levels = node.levels(task);
        let level = levels[self.random.below(levels.len())];
        let Some(next) = node.free.after(task, level) else { return false };
        node.free = next;
        true
    }
}
