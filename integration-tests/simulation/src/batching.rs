//! Measures the effect of placing queued requests together, and of migrating leases for them: the same arrivals, served
//! by three strategies.
//!
//! ```text
//!              ┌▶ one by one: each plan places one request
//! arrivals ────┼▶ together: each plan places all queued requests, as the broker does
//! (a seed)     └▶ moved: together, and the leases of some requests may migrate
//! ```
//!
//! Each step takes ten minutes: requests arrive, work ends, and the broker plans until its state is stable. A request
//! that is not placed within four hours gives up. Agents carry out orders at once, and a migrating lease has saved its
//! work as soon as its new place is ready. The broker needs no switch for this: the first strategy plans one request at
//! a time, and without preemptible requests no lease moves.

mod batching_report;
mod campus;
mod counters;
mod request_arrivals;
mod run;

use comity_core::Refusal;
use comity_core::packing::Task;

pub use self::batching_report::{BATCHING_HEAD, BatchingFigures, BatchingReport, BatchingResult, StrategyReport, row};
pub use self::campus::campus;
use self::request_arrivals::request_arrivals;
use self::run::Run;
use crate::time::{HOUR, MINUTE};
use crate::trace::Trace;

/// Interval between two plans, in milliseconds.
const PLAN_INTERVAL: u64 = 10 * MINUTE;
/// Warm-up before measuring starts: as long as the longest lease, so that the load is steady.
const WARM_UP: u64 = 24 * HOUR;
/// A request gives up after this time in the queue.
const QUEUE_TIMEOUT: u64 = 4 * HOUR;
/// The broker's bound on migrations: leases that may move for one request.
pub const MOST_MOVES: u64 = 2;
/// The broker's bound on migrations: milliseconds for which a lease is safe from a move after it started or moved.
pub const IN_PLACE_FOR: u64 = HOUR;

/// How the broker serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// One request per plan.
    OneByOne,
    /// All queued requests in one plan; no lease moves.
    Together,
    /// All queued requests in one plan, and some leases may move.
    Moved,
}

impl Strategy {
    /// All strategies, in the order of the report.
    pub const ALL: [Self; 3] = [Self::OneByOne, Self::Together, Self::Moved];

    /// The name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneByOne => "one by one",
            Self::Together => "together",
            Self::Moved => "moved",
        }
    }
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct BatchingTest {
    /// GPU-hours requested per hour, as a multiple of the number of GPUs.
    pub demand: f64,
    /// Milliseconds between two batches of arrivals, at least ten minutes; longer intervals make larger batches.
    pub every: u64,
    /// Days to measure, after one day of warm-up.
    pub days: u64,
    /// Percent of the requests whose leases may move under [`Strategy::Moved`].
    pub preemptible_percent: u8,
}

impl BatchingTest {
    /// Serves the arrivals of one seed by one strategy. Skips tasks without GPUs, which are no requests.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    pub fn run(&self, trace: &Trace, strategy: Strategy, seed: u64) -> Result<BatchingResult, Refusal> {
        let tasks: Vec<Task> = trace.tasks.iter().filter(|task| task.devices > 0).cloned().collect();
        let arrivals = request_arrivals(self, trace.capacity_milli(), &tasks, seed);
        let figures = Run::new(trace, &tasks, strategy, self.days)?.serve(&arrivals)?;
        Ok(BatchingResult { seed, figures })
    }
}
