//! What placing together and moving aside bring: the same requests, come in the same order, served in three ways.
//!
//! ```text
//!              ┌▶ one by one: each plan places one request
//! arrivals ────┼▶ together: a plan places all that wait, as the broker does
//! (a seed)     └▶ moved: together, and some said that their leases may move
//! ```
//!
//! Time passes in steps of ten minutes: requests come, work ends, and the broker plans until nothing more happens. A
//! request that is not placed within four hours goes away. Agents do at once what they are asked, and a lease that
//! moves has saved its work as soon as its new place is ready. Nothing of this is a switch of the broker: one request
//! in a plan leaves nothing to place together, and where no lease may move none does.

mod arrivals;
mod books;
mod campus;
mod report;
mod run;

use comity_core::Refusal;
use comity_core::packing::Task;

use self::arrivals::arrivals;
pub use self::campus::campus;
pub use self::report::{BatchingReport, Figures, HEAD, SeedResult, WayReport, row};
use self::run::Run;
use crate::trace::Trace;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// Between two looks of the broker at who waits.
const STEP: u64 = 10 * MINUTE;
/// Time that passes before anything is counted: as long as the longest lease, so that what runs then is as it goes on.
const SETTLING: u64 = 24 * HOUR;
/// How long a request waits before it goes away.
const PATIENCE: u64 = 4 * HOUR;
/// What the broker promises of repairs: at most so many leases move for a request.
pub const MOST_MOVES: u64 = 2;
/// The same: a lease has been in force for so long where it is, in milliseconds.
pub const IN_PLACE_FOR: u64 = HOUR;

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// One in a plan.
    OneByOne,
    /// All that wait in a plan; no lease moves.
    Together,
    /// The same, with leases that may move.
    Moved,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OneByOne, Self::Together, Self::Moved];

    /// Its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneByOne => "one by one",
            Self::Together => "together",
            Self::Moved => "moved",
        }
    }
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct BatchingTest {
    /// How much is asked for, in parts of the GPU capacity: GPU-hours asked for in an hour, by GPUs.
    pub demand: f64,
    /// Milliseconds from one time at which requests come to the next, ten minutes at least: the more, the more come
    /// together.
    pub every: u64,
    /// Days that are counted; one more passes before.
    pub days: u64,
    /// Requests of a hundred that say that their leases may move, where any do.
    pub preemptible_percent: u8,
}

impl BatchingTest {
    /// Serves the arrivals of one seed in one way. Tasks without GPUs are no requests and are left out.
    ///
    /// # Errors
    /// What the core refused that it should not have.
    pub fn run(&self, trace: &Trace, way: Way, seed: u64) -> Result<SeedResult, Refusal> {
        let tasks: Vec<Task> = trace.tasks.iter().filter(|task| task.devices > 0).cloned().collect();
        let arrivals = arrivals(self, trace.capacity_milli(), &tasks, seed);
        let figures = Run::new(trace, &tasks, way, self.days)?.serve(&arrivals)?;
        Ok(SeedResult { seed, figures })
    }
}
