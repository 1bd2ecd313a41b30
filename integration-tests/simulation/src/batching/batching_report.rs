//! The results of a batching simulation, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::{BatchingTest, IN_PLACE_FOR, MOST_MOVES, Strategy};
use crate::time::{HOUR, MINUTE};
use crate::trace::Trace;

/// The result of one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchingResult {
    /// Seed of the arrivals.
    pub seed: u64,
    /// The measured values.
    #[serde(flatten)]
    pub figures: BatchingFigures,
}

/// Values of the requests that arrived during the measured days. A gang is a request for more than one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BatchingFigures {
    /// Submitted requests.
    pub requests: f64,
    /// Those placed before they gave up.
    pub requests_let_in: f64,
    /// Submitted gangs.
    pub gangs: f64,
    /// Those placed before they gave up.
    pub gangs_let_in: f64,
    /// Requested GPU-hours.
    pub gpu_hours_asked: f64,
    /// GPU-hours of the placed requests.
    pub gpu_hours_let_in: f64,
    /// Mean over time of the lent GPU capacity, in percent.
    pub allocated_percent: f64,
    /// Mean over time of the idle GPUs that queued requests could have used: the lesser of the idle GPUs and the GPUs
    /// of the queued requests that ask for no more than the idle ones.
    pub stranded_gpus: f64,
    /// Mean waiting time of the placed requests.
    pub mean_wait_minutes: f64,
    /// Requests placed after leases had moved for them.
    pub let_in_by_moving: f64,
    /// Leases that moved.
    pub leases_moved: f64,
    /// Leases that moved for requests that gave up later.
    pub moved_in_vain: f64,
    /// Leases whose reclaim was withdrawn.
    pub spared: f64,
    /// Maximum number of leases that moved for one request.
    pub most_moved_for_one: f64,
    /// Moves that break the broker's bound: too many for one request, too soon after the lease started or moved, or for
    /// another reason than a migration. Must be 0.
    pub beyond_the_bound: f64,
    /// Leases that were reclaimed and got no new place. Must be 0.
    pub stopped: f64,
}

/// The results of one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyReport {
    /// Name of the strategy.
    #[serde(rename = "way")]
    pub strategy: &'static str,
    /// The result of each seed.
    pub seeds: Vec<BatchingResult>,
    /// Mean over the seeds, but the maximum of `most_moved_for_one` and of the values that must be 0.
    pub mean: BatchingFigures,
}

/// The broker's bound on migrations, and whether it held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundOnMoves {
    /// Maximum number of leases that move for one request.
    pub most_moves: u64,
    /// Minimum hours between the start or move of a lease and its next move.
    pub hours_in_place: u64,
    /// Whether the bound held in every run and no work was stopped.
    pub holds: bool,
}

/// The same arrivals, served by three strategies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchingReport {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of GPUs.
    pub gpus: u64,
    /// Mean GPUs in demand, as a multiple of the capacity.
    pub demand: f64,
    /// Minutes between two batches of arrivals.
    pub every_minutes: u64,
    /// Measured days.
    pub days: u64,
    /// Percent of the requests whose leases may move under [`Strategy::Moved`].
    pub preemptible_percent: u8,
    /// The results of each strategy.
    #[serde(rename = "ways")]
    pub strategies: Vec<StrategyReport>,
    /// The broker's bound on migrations.
    pub bound: BoundOnMoves,
}

/// Head of the table; [`row`] has the same columns.
pub const BATCHING_HEAD: &str = "way         seed  requests    let in     gangs    let in  allocated, %  stranded, GPUs  wait, min  moved  \
                        most for one";

/// One row of the table under [`BATCHING_HEAD`].
#[must_use]
pub fn row(strategy: Strategy, seed: &str, figures: &BatchingFigures) -> String {
    let mut line = format!("{:<10}{seed:>6}", strategy.as_str());
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

impl StrategyReport {
    /// Summarises the results of all seeds.
    #[must_use]
    pub fn new(strategy: Strategy, seeds: Vec<BatchingResult>) -> Self {
        Self { strategy: strategy.as_str(), mean: mean(&seeds), seeds }
    }
}

impl BatchingReport {
    /// Collects the results of all strategies.
    #[must_use]
    pub fn new(test: &BatchingTest, trace: &Trace, strategies: Vec<StrategyReport>) -> Self {
        let holds = strategies.iter().all(|strategy| strategy.mean.beyond_the_bound + strategy.mean.stopped == 0.0);
        Self {
            nodes: trace.nodes.len(),
            gpus: trace.capacity_milli() / 1_000,
            demand: test.demand,
            every_minutes: test.every / MINUTE,
            days: test.days,
            preemptible_percent: test.preemptible_percent,
            strategies,
            bound: BoundOnMoves { most_moves: MOST_MOVES, hours_in_place: IN_PLACE_FOR / HOUR, holds },
        }
    }
}

impl BatchingReport {
    /// One sentence on the broker's bound on migrations and whether it held.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let (moves, hours) = (self.bound.most_moves, self.bound.hours_in_place);
        let verdict = if self.bound.holds { "held in all runs" } else { "was VIOLATED" };
        format!(
            "bound on migrations: at most {moves} leases move per request, none within {hours} h of its start or last move, \
             none without a new place; it {verdict}"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "a thousand seeds at most")]
fn mean(seeds: &[BatchingResult]) -> BatchingFigures {
    let count = seeds.len().max(1) as f64;
    let of = |figure: fn(&BatchingFigures) -> f64| seeds.iter().map(|seed| figure(&seed.figures)).sum::<f64>() / count;
    let most = |figure: fn(&BatchingFigures) -> f64| seeds.iter().map(|seed| figure(&seed.figures)).fold(0.0, f64::max);
    BatchingFigures {
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
