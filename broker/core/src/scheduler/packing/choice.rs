//! The place chosen for a task, and the answers that a ranking caches.

use crate::scheduler::packing::rollout::ROLLOUTS;

/// The place chosen for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// A group of interchangeable nodes; [`StateIndex::first_node`](crate::packing::StateIndex::first_node) picks one.
    pub(crate) group: u32,
    /// Free thousandths of the device that supplies a share; several devices are always whole ones.
    pub level: u16,
    /// Cost with prices, in idle thousandths times the number of rollouts.
    pub cost: i64,
}

impl Choice {
    /// Thousandths of devices that the choice leaves idle in the end; negative if it reduces idleness.
    #[must_use]
    pub fn idle_milli(&self) -> i64 {
        self.cost.div_euclid(ROLLOUTS as i64)
    }
}

/// Cached answers for a task type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// Number of index changes at which the answers were computed; `None` before the first.
    pub(crate) as_of: Option<u64>,
    /// Price of scarcity, by scarcity class.
    pub(crate) prices: Vec<i64>,
    /// By donor: the outer `None` is not computed yet, the inner `None` is no place.
    pub(crate) choices: Vec<Option<Option<Choice>>>,
}
