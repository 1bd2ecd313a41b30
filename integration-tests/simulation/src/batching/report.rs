//! What came of it, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::{BatchingTest, HOUR, IN_PLACE_FOR, MINUTE, MOST_MOVES, Way};
use crate::trace::Trace;

/// What came of one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedResult {
    /// Seed of the arrivals.
    pub seed: u64,
    /// What was counted.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What is counted, of the requests that came in the days that count. A gang asks for more than one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that came.
    pub requests: f64,
    /// Those that were placed before they went away.
    pub requests_let_in: f64,
    /// Gangs that came.
    pub gangs: f64,
    /// Those that were placed before they went away.
    pub gangs_let_in: f64,
    /// GPU-hours asked for.
    pub gpu_hours_asked: f64,
    /// GPU-hours of those that were placed.
    pub gpu_hours_let_in: f64,
    /// GPU capacity that was lent, in percent, as a mean over time.
    pub allocated_percent: f64,
    /// GPUs that stood idle while requests waited for as many, as a mean over time: those idle, or those that requests
    /// wait for which ask for no more than that, whichever is less.
    pub stranded_gpus: f64,
    /// How long those that were placed waited, as a mean.
    pub mean_wait_minutes: f64,
    /// Requests that were placed after leases had moved for them.
    pub let_in_by_moving: f64,
    /// Leases that moved.
    pub leases_moved: f64,
    /// Of these, leases that moved for requests that went away in the end.
    pub moved_in_vain: f64,
    /// Leases that were reclaimed and stayed.
    pub spared: f64,
    /// Most leases that moved for one request.
    pub most_moved_for_one: f64,
    /// Moves beyond what the broker promises: one too many for a request, or of a lease that had not been long enough
    /// where it was, or for another reason than a repair. Must be none.
    pub beyond_the_bound: f64,
    /// Leases that were reclaimed and had no other place in the end. Must be none.
    pub stopped: f64,
}

/// One way to serve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WayReport {
    /// Which.
    pub way: &'static str,
    /// Each seed.
    pub seeds: Vec<SeedResult>,
    /// Mean over the seeds; of what must be none and of `most_moved_for_one`, the most.
    pub mean: Figures,
}

/// What a repair may cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundOnMoves {
    /// Leases that move for one request, at most.
    pub most_moves: u64,
    /// Hours for which a lease that moves has been where it is, at least.
    pub hours_in_place: u64,
    /// Whether this, and that nobody's work stops, was so in all that was simulated.
    pub holds: bool,
}

/// The same arrivals, served in three ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchingReport {
    /// Nodes.
    pub nodes: usize,
    /// GPUs.
    pub gpus: u64,
    /// GPUs asked for at a time, in parts of what there is.
    pub demand: f64,
    /// Minutes from one time at which requests came to the next.
    pub every_minutes: u64,
    /// Days that were counted.
    pub days: u64,
    /// Requests of a hundred whose leases might move where any did.
    pub preemptible_percent: u8,
    /// Each way.
    pub ways: Vec<WayReport>,
    /// What was promised of moves.
    pub bound: BoundOnMoves,
}

/// Head of the table; [`row`] has the same columns.
pub const HEAD: &str = "way         seed  requests    let in     gangs    let in  allocated, %  stranded, GPUs  wait, min  moved  most for one";

/// One line of the table.
#[must_use]
pub fn row(way: Way, seed: &str, figures: &Figures) -> String {
    let mut line = format!("{:<10}{seed:>6}", way.as_str());
    let _ = write!(line, "{:>10.1}{:>10.1}", figures.requests, figures.requests_let_in);
    let _ = write!(line, "{:>10.1}{:>10.1}", figures.gangs, figures.gangs_let_in);
    let _ = write!(line, "{:>14.2}{:>16.2}", figures.allocated_percent, figures.stranded_gpus);
    let _ = write!(
        line,
        "{:>11.1}{:>7.1}{:>14.0}",
        figures.mean_wait_minutes, figures.leases_moved, figures.most_moved_for_one
    );
    line
}

impl WayReport {
    /// Over what the seeds gave.
    #[must_use]
    pub fn new(way: Way, seeds: Vec<SeedResult>) -> Self {
        Self { way: way.as_str(), mean: mean(&seeds), seeds }
    }
}

impl BatchingReport {
    /// Over what the ways gave.
    #[must_use]
    pub fn new(test: &BatchingTest, trace: &Trace, ways: Vec<WayReport>) -> Self {
        let holds = ways.iter().all(|way| way.mean.beyond_the_bound + way.mean.stopped == 0.0);
        Self {
            nodes: trace.nodes.len(),
            gpus: trace.capacity_milli() / 1_000,
            demand: test.demand,
            every_minutes: test.every / MINUTE,
            days: test.days,
            preemptible_percent: test.preemptible_percent,
            ways,
            bound: BoundOnMoves { most_moves: MOST_MOVES, hours_in_place: IN_PLACE_FOR / HOUR, holds },
        }
    }
}

impl BatchingReport {
    /// What was promised of moves, and whether it was so, for people.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let (moves, hours) = (self.bound.most_moves, self.bound.hours_in_place);
        let says = if self.bound.holds { "so it was in all runs" } else { "this did NOT hold" };
        format!(
            "promised: at most {moves} leases move for a request, each has been {hours} h where it is, and nobody's work stops; {says}"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "a thousand seeds at most")]
fn mean(seeds: &[SeedResult]) -> Figures {
    let count = seeds.len().max(1) as f64;
    let of = |figure: fn(&Figures) -> f64| seeds.iter().map(|seed| figure(&seed.figures)).sum::<f64>() / count;
    let most = |figure: fn(&Figures) -> f64| seeds.iter().map(|seed| figure(&seed.figures)).fold(0.0, f64::max);
    Figures {
        requests: of(|figures| figures.requests),
        requests_let_in: of(|figures| figures.requests_let_in),
        gangs: of(|figures| figures.gangs),
        gangs_let_in: of(|figures| figures.gangs_let_in),
        gpu_hours_asked: of(|figures| figures.gpu_hours_asked),
        gpu_hours_let_in: of(|figures| figures.gpu_hours_let_in),
        allocated_percent: of(|figures| figures.allocated_percent),
        stranded_gpus: of(|figures| figures.stranded_gpus),
        mean_wait_minutes: of(|figures| figures.mean_wait_minutes),
        let_in_by_moving: of(|figures| figures.let_in_by_moving),
        leases_moved: of(|figures| figures.leases_moved),
        moved_in_vain: of(|figures| figures.moved_in_vain),
        spared: of(|figures| figures.spared),
        most_moved_for_one: most(|figures| figures.most_moved_for_one),
        beyond_the_bound: most(|figures| figures.beyond_the_bound),
        stopped: most(|figures| figures.stopped),
    }
}
