//! What is asked for lately: types of task with their weights.

use std::collections::BTreeMap;

use crate::scheduler::packing::node_state::Shape;
use crate::scheduler::packing::task::Task;

/// As so many tasks everything counts that is known from fewer: a first task tells little.
const LEAST_KNOWN: u64 = 128;

/// Types of task with how often each was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    types: BTreeMap<Task, u64>,
    /// Tasks that tell so.
    known_from: u64,
}

/// One type of task and the shapes that could run it.
pub(crate) struct TypeInMix<'a> {
    pub(crate) task: &'a Task,
    /// How often it was asked for.
    pub(crate) weight: u64,
    /// For each shape, whether an idle node of it could run the task.
    pub(crate) shapes: Vec<bool>,
}

impl Mix {
    /// An empty mix that so many tasks will have told of: the fewer, the more may come that none of them was like.
    #[must_use]
    pub fn known_from(tasks: u64) -> Self {
        Self { types: BTreeMap::new(), known_from: tasks }
    }

    /// Counts `task` once more, or `weight` times.
    pub fn add(&mut self, task: Task, weight: u64) {
        *self.types.entry(task).or_default() += weight;
    }

    /// Types and weights in a fixed order.
    pub fn types(&self) -> impl Iterator<Item = (&Task, u64)> {
        self.types.iter().map(|(task, weight)| (task, *weight))
    }

    /// As how many tasks those count that tell of the mix: at least [`LEAST_KNOWN`], and one, by Laplace's rule of
    /// succession.
    pub(crate) fn known_tasks(&self) -> u64 {
        self.known_from.max(LEAST_KNOWN).saturating_add(1)
    }

    /// Those types that some shape could run.
    pub(crate) fn over<'a>(&'a self, shapes: &[Shape]) -> Vec<TypeInMix<'a>> {
        self.types()
            .map(|(task, weight)| TypeInMix {
                task,
                weight,
                shapes: shapes.iter().map(|shape| shape.could_run(task)).collect(),
            })
            .filter(|of| of.weight > 0 && of.shapes.contains(&true))
            .collect()
    }
}
