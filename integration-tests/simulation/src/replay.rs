//! Replays a trace through a policy.

use std::time::Instant;

use serde::Serialize;

use crate::arrivals::arrivals;
use crate::policy::Policy;
use crate::trace::Trace;

/// The result of one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayResult {
    /// Seed of the arrivals.
    pub seed: u64,
    /// The measured values.
    #[serde(flatten)]
    pub figures: ReplayFigures,
}

/// Measured values; percentages are of the GPU capacity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayFigures {
    /// Mean allocation while the demand rounds to 100 %; `None` if it never reaches that.
    pub allocated_percent_at_100: Option<f64>,
    /// Mean allocation while the demand rounds to 130 %; `None` if it never reaches that.
    pub allocated_percent_at_130: Option<f64>,
    /// Demand at the first refusal of a GPU task; `None` without refusals.
    pub first_refused_gpu_task_at_percent: Option<f64>,
    /// Refused tasks with GPUs.
    pub refused_gpu_tasks: f64,
    /// Refused tasks without GPUs.
    pub refused_cpu_only_tasks: f64,
    /// Decisions per second, on one core.
    pub decisions_per_second: f64,
    /// 99th percentile of the time per decision, in microseconds.
    pub p99_us: f64,
}

/// Averages the allocation while the demand rounds to a mark in percent. If one task skips the mark, takes the
/// allocation right after it.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    sum: f64,
    count: f64,
}

impl Mark {
    /// Records that the demand is `percent` and the allocation `allocated` percent of the capacity.
    fn pass(&mut self, mark: f64, percent: f64, allocated: f64) {
        let leapt = percent > mark && self.count == 0.0;
        if percent.round() == mark || leapt {
            self.sum += allocated;
            self.count += 1.0;
        }
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// Replays `trace` once, from idle nodes.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts and thousandths are far below 2^52")]
pub fn replay(trace: &Trace, scheduler: &mut dyn Policy, seed: u64, inflate: f64) -> ReplayResult {
    let order = arrivals(trace, seed, inflate);
    let capacity = trace.capacity_milli() as f64;
    scheduler.restart(seed);
    let (mut asked, mut placed) = (0_u64, 0_u64);
    let (mut at_100, mut at_130) = (Mark::default(), Mark::default());
    let (mut first_refused, mut refused_gpu, mut refused_cpu) = (None, 0.0, 0.0);
    let mut nanoseconds: Vec<u64> = Vec::with_capacity(order.len());
    for index in order {
        let task = &trace.tasks[index];
        let started = Instant::now();
        let served = scheduler.place(task);
        nanoseconds.push(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        asked += task.device_milli();
        let percent = asked as f64 / capacity * 100.0;
        if served {
            placed += task.device_milli();
        } else if task.devices > 0 {
            refused_gpu += 1.0;
            first_refused.get_or_insert(percent);
        } else {
            refused_cpu += 1.0;
        }
        let allocated = placed as f64 / capacity * 100.0;
        at_100.pass(100.0, percent, allocated);
        at_130.pass(130.0, percent, allocated);
    }
    let seconds = nanoseconds.iter().sum::<u64>() as f64 / 1e9;
    let decisions = nanoseconds.len();
    nanoseconds.sort_unstable();
    let p99 = nanoseconds.get((decisions * 99 / 100).min(decisions.saturating_sub(1))).copied().unwrap_or(0);
    let figures = ReplayFigures {
        allocated_percent_at_100: at_100.mean(),
        allocated_percent_at_130: at_130.mean(),
        first_refused_gpu_task_at_percent: first_refused,
        refused_gpu_tasks: refused_gpu,
        refused_cpu_only_tasks: refused_cpu,
        decisions_per_second: if seconds > 0.0 { decisions as f64 / seconds } else { 0.0 },
        p99_us: p99 as f64 / 1e3,
    };
    ReplayResult { seed, figures }
}

#[cfg(test)]
mod tests {
    use super::Mark;

    #[test]
    fn a_mark_that_one_task_skips_takes_the_next_allocation() {
        let mut mark = Mark::default();
        for (percent, allocated) in [(80.0, 79.0), (104.0, 98.0), (110.0, 99.0)] {
            mark.pass(100.0, percent, allocated);
        }
        assert_eq!(mark.mean(), Some(98.0));
        let mut mark = Mark::default();
        for (percent, allocated) in [(99.6, 97.0), (100.4, 99.0), (101.0, 100.0)] {
            mark.pass(100.0, percent, allocated);
        }
        assert_eq!(mark.mean(), Some(98.0));
        let mut mark = Mark::default();
        mark.pass(100.0, 99.0, 98.0);
        assert_eq!(mark.mean(), None);
    }
}
