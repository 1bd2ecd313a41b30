//! Fragmentation gradient descent, as in its authors' simulator.

use std::collections::BTreeMap;

use comity_core::packing::{NodeState, Shape, Task};

use super::Policy;
use super::scan::{ScannedNode, clear, nodes};
use crate::arrivals::popularity;
use crate::trace::Trace;

/// Fraction of the tasks that the typical types cover.
const TYPICAL: f64 = 0.95;

/// "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the steepest descent of the expected fragmentation. Scores
/// are whole numbers from 0 to 100 and ties go to the lowest name, as in hkust-adsl/kubernetes-scheduler-simulator. It
/// scans every node for each task, and caches the score of a task type on a node until the node changes.
#[derive(Debug)]
pub struct Fgd {
    nodes: Vec<ScannedNode>,
    fragmentation: Vec<f64>,
    /// Number of changes of each node.
    changes: Vec<u64>,
    typical: Vec<(Task, f64)>,
    /// Cached scores by task type, one per node.
    scores: BTreeMap<Task, Vec<Scored>>,
}

/// The cached score of a task type on a node.
#[derive(Clone, Copy, Debug, Default)]
struct Scored {
    /// One more than the node's changes at the time of computation; 0 for no score yet.
    as_of: u64,
    /// The score and the free thousandths of the device for a share; `None` if the task does not fit.
    best: Option<(i64, u16)>,
}

impl Fgd {
    /// Starts with idle nodes; expects work like `history`.
    #[must_use]
    pub fn new(trace: &Trace, history: &[Task]) -> Self {
        let nodes = nodes(trace);
        let changes = vec![0; nodes.len()];
        Self { nodes, fragmentation: Vec::new(), changes, typical: typical(history), scores: BTreeMap::new() }
    }
}

/// The most frequent task types, with their probabilities.
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
        // Fragmentation counts CPU and GPUs, not memory.
        task.memory_mib = 0;
        kept.push((task, count as f64));
    }
    for (_, count) in &mut kept {
        *count /= covered;
    }
    kept
}

/// Expected thousandths of free devices that a typical task cannot use.
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

/// The best placement of a task on a node: its score, and the level of the device for a share.
fn best(typical: &[(Task, f64)], node: &ScannedNode, before: f64, task: &Task) -> Option<(i64, u16)> {
    let mut best: Option<(i64, u16)> = None;
    for level in if node.fits(task) { node.levels(task) } else { Vec::new() } {
        let Some(next) = node.free.after(task, level) else { continue };
        let after = fragmentation(typical, &node.shape, &next);
        #[expect(clippy::cast_possible_truncation, reason = "0 to 100")]
        let score = (100.0 / (1.0 + (-(before - after) / 1_000.0).exp())) as i64;
        if best.is_none_or(|best| score > best.0) {
            best = Some((score, level));
        }
    }
    best
}

impl Policy for Fgd {
    fn restart(&mut self, _seed: u64) {
        clear(&mut self.nodes);
        self.changes.iter_mut().for_each(|changes| *changes += 1);
        self.fragmentation =
            (self.nodes.iter()).map(|node| fragmentation(&self.typical, &node.shape, &node.free)).collect();
    }

    fn place(&mut self, task: &Task) -> bool {
        if !self.scores.contains_key(task) {
            self.scores.insert(task.clone(), vec![Scored::default(); self.nodes.len()]);
        }
        let Some(scores) = self.scores.get_mut(task) else { return false };
        let mut chosen: Option<(i64, usize, u16)> = None;
        for (index, scored) in scores.iter_mut().enumerate() {
            if scored.as_of != self.changes[index] + 1 {
                let best = best(&self.typical, &self.nodes[index], self.fragmentation[index], task);
                *scored = Scored { as_of: self.changes[index] + 1, best };
            }
            if let Some((score, level)) = scored.best
                && chosen.is_none_or(|chosen| score > chosen.0)
            {
                chosen = Some((score, index, level));
            }
        }
        let Some((_, index, level)) = chosen else { return false };
        let Some(next) = self.nodes[index].free.after(task, level) else { return false };
        self.fragmentation[index] = fragmentation(&self.typical, &self.nodes[index].shape, &next);
        self.nodes[index].free = next;
        self.changes[index] += 1;
        true
    }
}
