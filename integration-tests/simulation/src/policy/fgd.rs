//! Fragmentation gradient descent, as its authors' simulator does it.

use comity_core::packing::{NodeState, Shape, Task};

use super::Policy;
use super::scan::{ScannedNode, clear, nodes};
use crate::arrivals::popularity;
use crate::trace::Trace;

/// Part of the tasks that the typical types cover.
const TYPICAL: f64 = 0.95;

/// "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the steepest descent of the expected fragmentation. Scores are
/// whole numbers from 0 to 100 and ties go to the lowest name, as in hkust-adsl/kubernetes-scheduler-simulator.
#[derive(Debug)]
pub struct Fgd {
    nodes: Vec<ScannedNode>,
    fragmentation: Vec<f64>,
    typical: Vec<(Task, f64)>,
}

impl Fgd {
    /// Over idle nodes, expecting work like `history`.
    #[must_use]
    pub fn new(trace: &Trace, history: &[Task]) -> Self {
        Self { nodes: nodes(trace), fragmentation: Vec::new(), typical: typical(history) }
    }
}

/// The most popular types that together make up most tasks, and how likely each is.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn typical(history: &[Task]) -> Vec<(Task, f64)> {
    let mut types = popularity(history);
    types.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let all = history.len() as f64;
    let mut covered = 0.0;
    let mut kept: Vec<(Task, f64)> = Vec::new();
    for (mut task, count) in types {
        if covered >= TYPICAL * all {
            break;
        }
        covered += count as f64;
        // Fragmentation is about CPU and GPUs: memory has no part in it.
        task.memory_mib = 0;
        kept.push((task, count as f64));
    }
    for (_, count) in &mut kept {
        *count /= covered;
    }
    kept
}

/// Thousandths of devices that a typical task cannot use, expected.
fn fragmentation(typical: &[(Task, f64)], shape: &Shape, free: &NodeState) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "thousandths of one node's devices")]
    let as_float = |milli: u64| milli as f64;
    let all = free.device_milli();
    let of = |task: &Task| {
        if task.devices == 0 || !task.takes(shape.kind) || !free.fits(task) {
            return all;
        }
        free.devices.iter().filter(|&&milli| milli < task.milli).map(|&milli| u64::from(milli)).sum()
    };
    typical.iter().map(|(task, part)| part * as_float(of(task))).sum()
}

impl Policy for Fgd {
    fn restart(&mut self, _seed: u64) {
        clear(&mut self.nodes);
        self.fragmentation =
            (self.nodes.iter()).map(|node| fragmentation(&self.typical, &node.shape, &node.free)).collect();
    }

    fn place(&mut self, task: &Task) -> bool {
        let mut best: Option<(i64, usize, NodeState, f64)> = None;
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.fits(task)) {
            for level in node.levels(task) {
                let Some(next) = node.free.after(task, level) else { continue };
                let after = fragmentation(&self.typical, &node.shape, &next);
                #[expect(clippy::cast_possible_truncation, reason = "0 to 100")]
                let score = (100.0 / (1.0 + (-(self.fragmentation[index] - after) / 1_000.0).exp())) as i64;
                if best.as_ref().is_none_or(|best| score > best.0) {
                    best = Some((score, index, next, after));
                }
            }
        }
        let Some((_, index, next, after)) = best else { return false };
        self.nodes[index].free = next;
        self.fragmentation[index] = after;
        true
    }
}
