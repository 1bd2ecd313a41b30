//! Ways to put one type of task on nodes, at hand by what they cost.

use crate::scheduler::packing::choice::Answers;
use crate::scheduler::packing::cost::{Costs, KnownOfTask, States};
use crate::scheduler::packing::log::{Entry, Log};
use crate::scheduler::packing::task::Task;
use crate::scheduler::packing::ways::Ways;

/// States whose ways are looked up at once.
const LOOK_UPS: usize = 64;

/// Ways to put one type of task on nodes, cheapest first; fed when it is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    /// How many entries of the log were taken in.
    fed: usize,
    /// By shape, whether a node of it could ever run the task.
    runs: Vec<bool>,
    known: KnownOfTask,
    pub(crate) ways: Ways,
    /// Of what it is asked, until something changes.
    pub(crate) answers: Answers,
}

/// How nodes are sorted in a lane: those of one site whose shapes are as scarce as each other are a *front*. All ways
/// on it have the same price, but for slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fronts {
    /// By shape: shapes with the same number are as scarce as each other.
    alike: Vec<u32>,
    /// How many such numbers there are.
    of_site: u32,
}

impl Fronts {
    pub(crate) fn new(alike: Vec<u32>) -> Self {
        let of_site = alike.iter().map(|number| number + 1).max().unwrap_or(1);
        Self { alike, of_site }
    }

    /// The fronts of a site, each with the number that its shapes have.
    pub(crate) fn of(&self, site: u32) -> impl Iterator<Item = (u32, u32)> {
        let first = site * self.of_site;
        (0..self.of_site).map(move |number| (first + number, number))
    }

    /// The number of a shape.
    pub(crate) fn number(&self, shape: usize) -> u32 {
        self.alike[shape]
    }

    fn front(&self, entry: &Entry) -> usize {
        (entry.site * self.of_site + self.alike[entry.shape as usize]) as usize
    }
}

impl Lane {
    /// A lane for a task that runs on nodes of these shapes.
    pub(crate) fn on(runs: Vec<bool>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// Takes in what the log tells since the last time.
    pub(crate) fn feed(&mut self, log: &Log, task: &Task, (costs, states): (&mut Costs, &mut States), fronts: &Fronts) {
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
                let (entry, ways) = (&entries[at], &mut self.ways);
                let front = fronts.front(entry);
                costs.ways(states, (task, &mut self.known), (entry.state, known), |way| ways.push(front, entry, way));
            }
        }
        self.fed = log.len();
    }

    /// Ways that it holds, and states that it knows of.
    pub(crate) fn held(&self) -> usize {
        self.ways.held() + self.known.len()
    }

    /// The log was shortened: so many entries are left ahead of each place.
    pub(crate) fn log_shortened(&mut self, ahead: &[u32]) {
        self.fed = ahead[self.fed] as usize;
    }
}
