//! Draws requests and their times from a seed, the same for all strategies.

use comity_core::packing::Task;

use super::{BatchingTest, PLAN_INTERVAL, QUEUE_TIMEOUT, WARM_UP};
use crate::random::Random;
use crate::time::HOUR;

/// Longest work, in hours; each number of whole hours up to it is equally likely.
const MOST_HOURS: usize = 24;

/// A request that arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestArrival<'t> {
    /// Milliseconds since the start of the simulation.
    pub(super) at: u64,
    pub(super) task: &'t Task,
    /// Duration of the work in milliseconds.
    pub(super) lasts: u64,
    /// Whether its lease may move.
    pub(super) may_move: bool,
}

/// Requests in order of time that add up to the demand of `test`, from the start of the warm-up until every measured
/// request was placed or gave up.
pub(super) fn request_arrivals<'t>(
    test: &BatchingTest,
    capacity_milli: u64,
    tasks: &'t [Task],
    seed: u64,
) -> Vec<RequestArrival<'t>> {
    let every = test.every.max(PLAN_INTERVAL);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a bounded multiple of a capacity"
    )]
    let each_step = (capacity_milli as f64 * test.demand * every as f64) as i128;
    let mut random = Random::new(seed);
    // A separate generator, so that the arrivals do not depend on the percentage of preemptible requests.
    let mut moves = Random::new(seed ^ 0x6d6f_7665);
    let (mut found, mut owed) = (Vec::new(), 0_i128);
    for at in (0..WARM_UP + test.days * 24 * HOUR + QUEUE_TIMEOUT).step_by(usize::try_from(every).unwrap_or(1)) {
        owed += each_step;
        // The last request may exceed the demand that is due; the next step then has less.
        while owed > 0 {
            let task = &tasks[random.below(tasks.len())];
            let lasts = (1 + random.below(MOST_HOURS) as u64) * HOUR;
            let may_move = moves.below(100) < usize::from(test.preemptible_percent);
            found.push(RequestArrival { at, task, lasts, may_move });
            owed -= i128::from(task.device_milli()) * i128::from(lasts);
        }
    }
    found
}
