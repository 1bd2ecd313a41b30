//! Bounds the GPU capacity that any scheduler can allocate, by a linear programme over divisible tasks.
//!
//! ```text
//! nodes ─▶ shapes: totals of CPU, memory, devices ┐
//!                                                 ├▶ for each step of demand: which tasks to take, where ─▶ allocated
//! tasks ─▶ types: how many of each come           ┘      (columns: patterns of shares on one device)
//! ```
//!
//! Tasks are divisible and arrive in the trace's proportions. Nodes of one shape are merged into one, but devices stay
//! whole: a device holds whole numbers of shares, by patterns whose sum is at most one device (column generation after
//! Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research 1961). Shares
//! below a tenth of a device fill the rest of the patterns. Every relaxation adds capacity, so the results are upper
//! bounds for two kinds of scheduler:
//!
//! - *work-conserving*: accepts as many tasks as fit in each step of demand, keeps every accepted task,
//!   and may move all tasks between steps.
//! - *free choice*: may refuse any task; at demands above the capacity this bound is weak.

mod patterns;
mod programme;

use serde::Serialize;

use crate::trace::Trace;
use programme::Programme;

/// Why there is no bound.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// The solver failed.
    #[error("the linear programme at {demand_percent} % demand was not solved: {reason}; try another step")]
    Unsolved {
        /// Demand at which it failed.
        demand_percent: f64,
        /// The solver's reason.
        reason: String,
    },
    /// The trace has too many kinds of work.
    #[error(
        "the trace has {types} types of task on {shapes} shapes of node; a bound takes at most {most} of their pairs"
    )]
    TooLarge {
        /// Types of task.
        types: usize,
        /// Shapes of node.
        shapes: usize,
        /// Maximum number of pairs.
        most: usize,
    },
}

/// The bounds at one demand, in percent of the GPU capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Requested capacity.
    pub demand_percent: f64,
    /// Bound for a scheduler that accepts every task it can fit.
    pub work_conserving_percent: f64,
    /// Bound for a scheduler that may refuse tasks.
    pub free_choice_percent: f64,
}

/// The bounds at the demands that a replay reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Nodes of the trace.
    pub nodes: usize,
    /// Devices of the trace.
    pub gpus: u64,
    /// Demand between two decisions of the work-conserving scheduler.
    pub step_percent: f64,
    /// At 100 % and 130 % demand.
    pub marks: Vec<Point>,
}

/// Demands that a replay reports on, in percent.
const MARKS: [f64; 2] = [100.0, 130.0];

/// Computes the bounds, telling `progress` the demand after each step.
///
/// # Errors
/// When a programme is too large or has no solution.
pub fn bound(trace: &Trace, step_percent: f64, mut progress: impl FnMut(f64)) -> Result<Bound, BoundError> {
    let mut programme = Programme::new(trace)?;
    let mut marks = Vec::new();
    let mut accepted = programme.nothing();
    let mut demand = 0.0;
    for mark in MARKS {
        while demand < mark {
            // The last step before a mark is shorter where steps do not divide it.
            let next = f64::min(demand + step_percent, mark);
            let least = accepted.clone();
            let most = programme.arrived(&accepted, next - demand);
            accepted = programme.most_tasks(&least, &most).map_err(|reason| unsolved(next, reason))?;
            demand = next;
            progress(demand);
        }
        let all = programme.arrived(&programme.nothing(), mark);
        let free = programme.most_devices(&all).map_err(|reason| unsolved(mark, reason))?;
        marks.push(Point {
            demand_percent: mark,
            work_conserving_percent: programme.allocated_percent(&accepted),
            free_choice_percent: programme.allocated_percent(&free),
        });
    }
    Ok(Bound { nodes: trace.nodes.len(), gpus: trace.capacity_milli() / 1_000, step_percent, marks })
}

fn unsolved(demand_percent: f64, reason: String) -> BoundError {
    BoundError::Unsolved { demand_percent, reason }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;

    use comity_core::packing::{Shape, Task};

    use super::*;

    fn trace(nodes: u64, devices: u16, tasks: &[(u64, u16, u16)]) -> Trace {
        let shape = Shape { cpu_milli: 8_000, memory_mib: 1_000, devices, kind: 0 };
        let nodes = (0..nodes).map(|index| (format!("node-{index}"), shape.clone())).collect::<BTreeMap<_, _>>();
        let task = |&(cpu_milli, devices, milli)| Task { cpu_milli, memory_mib: 1, devices, milli, kinds: Vec::new() };
        Trace { nodes, tasks: tasks.iter().map(task).collect() }
    }

    fn percents(trace: &Trace) -> Vec<(f64, f64)> {
        let bound = bound(trace, 5.0, |_| ()).unwrap();
        let round = |value: f64| (value * 100.0).round() / 100.0;
        bound.marks.iter().map(|mark| (round(mark.work_conserving_percent), round(mark.free_choice_percent))).collect()
    }

    #[test]
    fn whole_devices_can_all_be_allocated() {
        assert_eq!(percents(&trace(4, 2, &[(1_000, 1, 1_000)])), [(100.0, 100.0), (100.0, 100.0)]);
    }

    #[test]
    fn the_bound_never_exceeds_the_capacity() {
        let tasks = [(1_000, 1, 1_000), (2_000, 2, 1_000), (500, 1, 500), (250, 1, 250), (300, 1, 150)];
        for step in [0.5, 2.0, 7.0] {
            for mark in bound(&trace(7, 3, &tasks), step, |_| ()).unwrap().marks {
                let all = [mark.work_conserving_percent, mark.free_choice_percent];
                assert!(all.iter().all(|percent| *percent <= 100.0 && *percent > 99.9), "{step}: {mark:?}");
            }
        }
    }

    #[test]
    fn two_shares_of_six_tenths_are_not_one_device() {
        // Each device serves one share and stays idle by 40 %.
        assert_eq!(percents(&trace(10, 1, &[(10, 1, 600)])), [(60.0, 60.0), (60.0, 60.0)]);
    }

    #[test]
    fn shares_that_add_up_to_a_device_fill_it() {
        assert_eq!(percents(&trace(10, 1, &[(10, 1, 600), (10, 1, 400)])), [(100.0, 100.0), (100.0, 100.0)]);
    }

    #[test]
    fn small_shares_fill_the_rest_of_patterns() {
        let tasks = [
            (10, 1, 600),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
            (10, 1, 50),
        ];
        assert_eq!(percents(&trace(10, 1, &tasks))[0], (100.0, 100.0));
    }

    #[test]
    fn devices_without_processors_stay_idle() {
        // Eight cores a node and four for each device: two of four devices.
        assert_eq!(percents(&trace(5, 4, &[(4_000, 1, 1_000)])), [(50.0, 50.0), (50.0, 50.0)]);
    }

    #[test]
    fn a_scheduler_that_may_not_refuse_allocates_less() {
        // Half of the devices are asked for with all processors of a node, half with none; one may choose the latter
        // only.
        let found = percents(&trace(10, 4, &[(8_000, 1, 1_000), (1, 1, 1_000), (1, 1, 1_000), (1, 1, 1_000)]));
        assert!(found[1].0 <= found[1].1, "{found:?}");
        assert!(found[1].1 > 97.0, "{found:?}");
    }
}
