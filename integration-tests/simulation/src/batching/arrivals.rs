//! Who asks for what, and when: drawn by a seed, the same for all ways.

use comity_core::packing::Task;

use super::{BatchingTest, HOUR, PATIENCE, SETTLING, STEP};
use crate::random::Random;

/// Longest time that work takes; each whole hour up to it is as likely.
const MOST_HOURS: usize = 24;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'t> {
    /// Milliseconds after the begin.
    pub(super) at: u64,
    pub(super) task: &'t Task,
    /// How long its work takes, in milliseconds.
    pub(super) lasts: u64,
    /// Whether it says that its lease may move.
    pub(super) may_move: bool,
}

/// Requests in order of time: as many as it takes that so much is asked for, from before anything is counted until the
/// last that are have been served or have gone.
pub(super) fn arrivals<'t>(test: &BatchingTest, capacity_milli: u64, tasks: &'t [Task], seed: u64) -> Vec<Arrival<'t>> {
    let every = test.every.max(STEP);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a bounded multiple of a capacity"
    )]
    let each_step = (capacity_milli as f64 * test.demand * every as f64) as i128;
    let mut random = Random::new(seed);
    // Drawn apart, so that who comes when does not depend on how many may move.
    let mut moves = Random::new(seed ^ 0x6d6f_7665);
    let (mut found, mut owed) = (Vec::new(), 0_i128);
    for at in (0..SETTLING + test.days * 24 * HOUR + PATIENCE).step_by(usize::try_from(every).unwrap_or(1)) {
        owed += each_step;
        // The last may ask for more than is due: of that there is less the next time.
        while owed > 0 {
            let task = &tasks[random.below(tasks.len())];
            let lasts = (1 + random.below(MOST_HOURS) as u64) * HOUR;
            let may_move = moves.below(100) < usize::from(test.preemptible_percent);
            found.push(Arrival { at, task, lasts, may_move });
            owed -= i128::from(task.device_milli()) * i128::from(lasts);
        }
    }
    found
}
