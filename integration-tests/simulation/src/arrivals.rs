//! Who comes when: the trace's tasks shuffled, then sampled again up to the demand, as in the trace's paper.

use comity_core::packing::Task;

use crate::random::Random;
use crate::trace::Trace;

/// Tasks in order of arrival, until `inflate` times the capacity is asked for; by index into the trace.
///
/// A list that asks for more is thinned: tasks go at random until it does not.
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

/// Types of task and how often each occurs.
#[must_use]
pub fn popularity(tasks: &[Task]) -> Vec<(Task, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for task in tasks {
        *counts.entry(task.clone()).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// The part of `history` that is known, in percent: drawn at random, always the same.
#[must_use]
pub fn known(mut history: Vec<Task>, percent: u8) -> Vec<Task> {
    if percent < 100 {
        Random::new(7).shuffle(&mut history);
        history.truncate(history.len() * usize::from(percent) / 100);
    }
    history
}
