//! Assignments to put one type of task on nodes, at hand by what they cost.

use crate::scheduler::packing::assignments::Assignments;
use crate::scheduler::packing::choice::Answers;
use crate::scheduler::packing::cost::{Costs, KnownOfTask, States};
use crate::scheduler::packing::log::{Entry, Log};
use crate::scheduler::packing::task::Task;

/// States whose assignments are looked up at once.
const LOOK_UPS: usize = 64;

/// Assignments to put one type of task on nodes, cheapest first; fed when it is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranking {
    /// How many entries of the log were taken in.
    fed: usize,
    /// By shape, whether a node of it could ever run the task.
    runs: Vec<bool>,
    known: KnownOfTask,
    pub(crate) assignments: Assignments,
    /// Of what it is asked, until something changes.
    pub(crate) answers: Answers,
}

/// How nodes are sorted in a ranking: those of one donor whose shapes are as scarce as each other are a *tier*. All assignments
/// on it have the same price, but for slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiers {
    /// By shape: shapes with the same number are as scarce as each other.
    alike: Vec<u32>,
    /// How many such numbers there are.
    of_donor: u32,
}

impl Tiers {
    pub(crate) fn new(alike: Vec<u32>) -> Self {
        let of_donor = alike.iter().map(|number| number + 1).max().unwrap_or(1);
        Self { alike, of_donor }
    }

    /// The tiers of a donor, each with the number that its shapes have.
    pub(crate) fn of(&self, donor: u32) -> impl Iterator<Item = (u32, u32)> {
        let first = donor * self.of_donor;
        (0..self.of_donor).map(move |number| (first + number, number))
    }

    /// The number of a shape.
    pub(crate) fn number(&self, shape: usize) -> u32 {
        self.alike[shape]
    }

    fn tier(&self, entry: &Entry) -> usize {
        (entry.donor * self.of_donor + self.alike[entry.shape as usize]) as usize
    }
}

impl Ranking {
    /// A ranking for a task that runs on nodes of these shapes.
    pub(crate) fn on(runs: Vec<bool>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// Takes in what the log tells since the last time.
    pub(crate) fn feed(&mut self, log: &Log, task: &Task, (costs, states): (&mut Costs, &mut States), tiers: &Tiers) {
        for entries in log.since(self.fed).chunks(LOOK_UPS) {
            // All are looked up before anything is done with one: so the processor waits for memory once, not for each.
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
                let tier = tiers.tier(entry);
                costs.assignments(states, (task, &mut self.known), (entry.state, known), |assignment| {
                    assignments.push(tier, entry, assignment)
                });
            }
        }
        self.fed = log.len();
    }

    /// Assignments that it holds, and states that it knows of.
    pub(crate) fn held(&self) -> usize {
        self.assignments.held() + self.known.len()
    }

    /// The log was shortened: so many entries are left ahead of each place.
    pub(crate) fn log_shortened(&mut self, ahead: &[u32]) {
        self.fed = ahead[self.fed] as usize;
    }
}
