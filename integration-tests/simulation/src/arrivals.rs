//! Draws the order of arrivals: the trace's tasks shuffled, then sampled again up to the demand, as in the trace's
//! paper.

use comity_core::packing::Task;

use crate::random::Random;
use crate::trace::Trace;

/// Indices of the trace's tasks in order of arrival, until they request `inflate` times the GPU capacity.
///
/// If the trace alone requests more, random tasks are dropped.
#[must_use]
pub fn arrivals(trace: &Trace, seed: u64, inflate: f64) -> Vec<usize> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a bounded part of a capacity"
    )]
    let wanted = (trace.capacity_milli() as f64 * inflate) as u64;
    let mut random = Random::new(seed);
    let mut order: Vec<usize> = (0..trace.tasks.len()).collect();
    random.shuffle(&mut order);
    let milli = |index: usize| trace.tasks[index].device_milli();
    let mut asked: u64 = order.iter().map(|&index| milli(index)).sum();
    while asked > wanted {
        let Some(last) = order.pop() else { break };
        asked -= milli(last);
    }
    if order.len() < trace.tasks.len() {
        return order;
    }
    loop {
        let index = random.below(trace.tasks.len());
        if asked + milli(index) > wanted {
            return order;
        }
        asked += milli(index);
        order.push(index);
    }
}

/// Distinct tasks with the number of their occurrences.
#[must_use]
pub fn popularity(tasks: &[Task]) -> Vec<(Task, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for task in tasks {
        *counts.entry(task.clone()).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// A random `percent` of `history`, the same on every call.
#[must_use]
pub fn known(mut history: Vec<Task>, percent: u8) -> Vec<Task> {
    if percent < 100 {
        Random::new(7).shuffle(&mut history);
        history.truncate(history.len() * usize::from(percent) / 100);
    }
    history
}
