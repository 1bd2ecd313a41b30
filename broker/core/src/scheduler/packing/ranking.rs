//! The assignments of one task type, ranked by cost and fed from the log.

use crate::scheduler::packing::assignments::Assignments;
use crate::scheduler::packing::choice::Answers;
use crate::scheduler::packing::cost::{Costs, KnownAssignments, States};
use crate::scheduler::packing::log::{Log, LogEntry};
use crate::scheduler::packing::task::Task;

/// Entries whose known assignments are looked up in one batch.
const LOOK_UPS: usize = 64;

/// The assignments of one task type, cheapest first. A ranking reads the log only when it is queried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranking {
    /// Log entries read so far.
    entries_read: usize,
    /// By shape, whether an idle node could run the task.
    runs: Vec<bool>,
    known: KnownAssignments,
    pub(crate) assignments: Assignments,
    /// Cached answers, valid until the index changes.
    pub(crate) answers: Answers,
}

/// Sorts nodes into tiers. A *tier* holds the nodes of one donor whose shapes have equal scarcity; its assignments
/// share one price, apart from the price of slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiers {
    /// By shape: shapes of one class have equal scarcity.
    scarcity_classes: Vec<u32>,
    class_count: u32,
}

/// One tier of a donor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TierId {
    pub(crate) tier: u32,
    pub(crate) scarcity_class: u32,
}

impl Tiers {
    pub(crate) fn new(scarcity_classes: Vec<u32>) -> Self {
        let class_count = scarcity_classes.iter().map(|class| class + 1).max().unwrap_or(1);
        Self { scarcity_classes, class_count }
    }

    pub(crate) fn of_donor(&self, donor: u32) -> impl Iterator<Item = TierId> {
        let first = donor * self.class_count;
        (0..self.class_count).map(move |scarcity_class| TierId { tier: first + scarcity_class, scarcity_class })
    }

    pub(crate) fn scarcity_class(&self, shape: usize) -> u32 {
        self.scarcity_classes[shape]
    }

    fn tier_of(&self, entry: &LogEntry) -> usize {
        (entry.donor * self.class_count + self.scarcity_classes[entry.shape as usize]) as usize
    }
}

impl Ranking {
    /// An empty ranking for a task that runs on the shapes marked in `runs`.
    pub(crate) fn on(runs: Vec<bool>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// Reads the log entries added since the last call.
    pub(crate) fn feed(&mut self, log: &Log, task: &Task, costs: &mut Costs, states: &mut States, tiers: &Tiers) {
        for entries in log.entries_from(self.entries_read).chunks(LOOK_UPS) {
            // Looking up a whole batch first lets the processor overlap the memory reads.
            let mut looked_up = [(0, None); LOOK_UPS];
            let mut count = 0;
            for (at, entry) in entries.iter().enumerate() {
                if entry.may_fit(task) && self.runs[entry.shape as usize] {
                    looked_up[count] = (at, self.known.get(entry.state));
                    count += 1;
                }
            }
            for &(at, known) in &looked_up[..count] {
                let (entry, assignments) = (&entries[at], &mut self.assignments);
                let tier = tiers.tier_of(entry);
                costs.assignments(states, task, &mut self.known, entry.state, known, |assignment| {
                    assignments.push(tier, entry, assignment)
                });
            }
        }
        self.entries_read = log.len();
    }

    /// Number of assignments and known states held.
    pub(crate) fn held(&self) -> usize {
        self.assignments.held() + self.known.len()
    }

    /// Adjusts the read position after [`Log::compact`], which returned `kept_before`.
    pub(crate) fn log_compacted(&mut self, kept_before: &[u32]) {
        self.entries_read = kept_before[self.entries_read] as usize;
    }
}
