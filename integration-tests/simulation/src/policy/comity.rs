//! Comity's own packing, from the broker's core: its index keeps the books here as well.

use comity_core::packing::{Mix, Pool, Shape, Task};

use super::Policy;
use crate::trace::Trace;

/// The packing of `comity-core`.
#[derive(Debug)]
pub struct Comity {
    pool: Pool<u32>,
    shapes: Vec<Shape>,
}

impl Comity {
    /// Over idle nodes, expecting work like `history`.
    #[must_use]
    pub fn new(trace: &Trace, history: &[Task]) -> Self {
        let mut pool = Pool::default();
        for (number, shape) in (0..).zip(trace.nodes.values()) {
            pool.set(number, shape, shape.idle());
        }
        let mut mix = Mix::default();
        for task in history {
            mix.add(task.clone(), 1);
        }
        pool.expect(mix);
        Self { pool, shapes: trace.nodes.values().cloned().collect() }
    }
}

impl Policy for Comity {
    fn restart(&mut self, _seed: u64) {
        for (number, shape) in (0..).zip(&self.shapes) {
            self.pool.update(&number, shape.idle());
        }
    }

    fn place(&mut self, task: &Task) -> bool {
        let Some(choice) = self.pool.choose(task) else { return false };
        let Some(next) = self.pool.free(&choice.node).and_then(|free| free.after(task, choice.level)) else {
            return false;
        };
        self.pool.update(&choice.node, next);
        true
    }
}
