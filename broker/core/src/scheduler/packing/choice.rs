//! Where a task goes, and the answers that a ranking remembers.

use crate::scheduler::packing::rollout::ROLLOUTS;

/// Where to put a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Nodes that are as good as each other; [`StateIndex::first_node`] says which is taken.
    pub(crate) group: u32,
    /// Free thousandths of the device that a share comes from; several devices come from those that are whole.
    pub level: u16,
    /// Idle thousandths that the choice costs in the end, times the number of rollouts played, with prices.
    pub cost: i64,
}

impl Choice {
    /// Thousandths of devices that the choice leaves idle in the end, or keeps from it where negative.
    #[must_use]
    pub fn idle_milli(&self) -> i64 {
        self.cost.div_euclid(ROLLOUTS as i64)
    }
}

/// Answers about a type of task, as long as nothing changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// After so many changes of the index; `None`: there are none yet.
    pub(crate) after: Option<u64>,
    /// By the number that shapes have which are as scarce as each other: what scarcity adds.
    pub(crate) prices: Vec<i64>,
    /// By donor.
    pub(crate) choices: Vec<Option<Option<Choice>>>,
}
