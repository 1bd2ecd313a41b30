//! The mix of recent work: task types with their weights.

use std::collections::BTreeMap;

use crate::scheduler::packing::node_state::Shape;
use crate::scheduler::packing::task::Task;

/// Lower bound on the sample size: very small samples tell little.
const MIN_KNOWN_TASKS: u64 = 128;

/// Task types, weighted by how often they were requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    types: BTreeMap<Task, u64>,
    /// Sample size in tasks.
    known_from: u64,
}

/// A task type with the shapes that could run it.
pub(crate) struct TypeInMix<'a> {
    pub(crate) task: &'a Task,
    /// How often it was requested.
    pub(crate) weight: u64,
    /// For each shape, whether an idle node of it could run the task.
    pub(crate) shapes: Vec<bool>,
}

impl Mix {
    /// An empty mix that will be estimated from `tasks` tasks: the fewer, the likelier is work unlike any of them.
    #[must_use]
    pub fn known_from(tasks: u64) -> Self {
        Self { types: BTreeMap::new(), known_from: tasks }
    }

    /// Adds `weight` to the weight of `task`.
    pub fn add(&mut self, task: Task, weight: u64) {
        *self.types.entry(task).or_default() += weight;
    }

    /// Types and weights in a fixed order.
    pub fn types(&self) -> impl Iterator<Item = (&Task, u64)> {
        self.types.iter().map(|(task, weight)| (task, *weight))
    }

    /// The sample size: at least [`MIN_KNOWN_TASKS`], plus one by Laplace's rule of succession.
    pub(crate) fn known_tasks(&self) -> u64 {
        self.known_from.max(MIN_KNOWN_TASKS).saturating_add(1)
    }

    /// The types that at least one shape could run.
    pub(crate) fn runnable_on<'a>(&'a self, shapes: &[Shape]) -> Vec<TypeInMix<'a>> {
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
