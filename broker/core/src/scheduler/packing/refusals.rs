//! The cost of refusing CPU-only work where CPU runs out before devices do.
//!
//! Refused work with devices leaves devices idle, and that idleness is its cost. Refused CPU-only work leaves no device
//! idle. Without a cost of its own, it would be sacrificed for any device.

use crate::scheduler::packing::mix::TypeInMix;
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::task::Task;

/// Cost of a core where CPU is scarce, in percent of the devices per core.
const CORE_WORTH_PERCENT: u128 = 24;
/// CPU demand, in percent of capacity, at which CPU starts to be scarce and at which it is fully scarce.
const SCARCE_CPU_PERCENT: (u128, u128) = (82, 96);
/// CPU demand, in percent of capacity, at which refusals start to be inevitable and at which they are certain.
const SHORT_CPU_PERCENT: (u128, u128) = (96, 100);
/// Where refusals are certain, the cost of a core grows by this factor divided by the square root of the known tasks.
/// Like a standard error: the fewer tasks are known, the less certain it is that CPU remains where it will be needed.
const UNCERTAINTY_WEIGHT: u128 = 70;
/// Lower bound on the known tasks, which bounds the growth of the cost per core.
const MIN_TASKS_FOR_CERTAINTY: u64 = 400;
/// Where refusals are certain, this many thousandths of the cost are the same for every task: one large refusal beats
/// several small ones.
const FLAT_PART_MILLI: u128 = 50;

/// The cost of refusing a CPU-only task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusals {
    /// Per core, in millionths of a device.
    micro_per_core: u64,
    /// Per task, in millionths of a device.
    micro_each: u64,
}

impl Refusals {
    /// Costs under this demand, estimated from `known_tasks` tasks; zero where CPU suffices.
    pub(crate) fn of(mix: &[TypeInMix<'_>], totals: &[ShapeTotal], known_tasks: u64) -> Self {
        let devices: u128 = totals.iter().map(|total| u128::from(total.device_milli)).sum();
        let cpu: u128 = totals.iter().map(|total| u128::from(total.cpu_milli)).sum();
        let wanted =
            |of: fn(&Task) -> u64| mix.iter().map(move |t| u128::from(t.weight) * u128::from(of(t.task))).sum();
        let (wanted_devices, wanted_cpu): (u128, u128) = (wanted(Task::device_milli), wanted(|task| task.cpu_milli));
        // CPU demand once all devices are taken, in percent of capacity.
        let pressure = (wanted_cpu * devices * 100).checked_div(wanted_devices * cpu).unwrap_or(0);
        let within = |(none, full): (u128, u128)| (pressure.clamp(none, full) - none, full - none);
        let (scarce, of) = within(SCARCE_CPU_PERCENT);
        let certain = devices * 1_000_000 * CORE_WORTH_PERCENT * scarce / (cpu.max(1) * 100 * of);
        let (short, of) = within(SHORT_CPU_PERCENT);
        let unsure =
            certain * UNCERTAINTY_WEIGHT * short / (u128::from(known_tasks.max(MIN_TASKS_FOR_CERTAINTY).isqrt()) * of);
        let micro_per_core = certain + unsure;
        let each = micro_per_core * FLAT_PART_MILLI * short / (1_000 * of);
        Self {
            micro_per_core: u64::try_from(micro_per_core - each).unwrap_or(u64::MAX),
            micro_each: u64::try_from(each * mean_cpu_milli(mix) / 1_000).unwrap_or(u64::MAX),
        }
    }

    /// The cost of refusing `task`, in thousandths of a device.
    pub(crate) fn milli(&self, task: &Task) -> u64 {
        if task.devices > 0 {
            return 0;
        }
        (task.cpu_milli.saturating_mul(self.micro_per_core) / 1_000).saturating_add(self.micro_each) / 1_000
    }
}

/// Mean CPU of CPU-only tasks.
fn mean_cpu_milli(mix: &[TypeInMix<'_>]) -> u128 {
    let without = || mix.iter().filter(|of| of.task.devices == 0);
    let cpu: u128 = without().map(|of| u128::from(of.weight) * u128::from(of.task.cpu_milli)).sum();
    let tasks: u128 = without().map(|of| u128::from(of.weight)).sum();
    cpu / tasks.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Practically everything is known.
    const EVERYTHING: u64 = u64::MAX;

    fn without_devices(cores: u64) -> Task {
        Task { cpu_milli: cores * 1_000, memory_mib: 1, devices: 0, milli: 0, kinds: Vec::new() }
    }

    /// The cost of refusing tasks of 4 and of 36 cores. A hundred nodes have 64 cores and 8 devices each; CPU demand
    /// once all devices are taken is `percent` of capacity.
    fn lost(percent: u64, known_tasks: u64) -> (u64, u64) {
        // 640 cores belong to 80 devices: two CPU-only tasks take 40 of them, tasks with devices the rest.
        let cpu_milli = percent * 80 - 500;
        let with = Task { cpu_milli, memory_mib: 1, devices: 1, milli: 1_000, kinds: Vec::new() };
        let (small, large) = (without_devices(4), without_devices(36));
        let mix = [(&with, 80), (&small, 1), (&large, 1)].map(|(task, weight)| TypeInMix {
            task,
            weight,
            shapes: vec![true],
        });
        let refusals = Refusals::of(&mix, &[ShapeTotal { device_milli: 800_000, cpu_milli: 6_400_000 }], known_tasks);
        assert_eq!(refusals.milli(&with), 0, "its idle devices are the cost");
        (refusals.milli(&small), refusals.milli(&large))
    }

    #[test]
    fn cores_cost_something_where_cpu_runs_out_before_devices() {
        assert_eq!(lost(80, EVERYTHING), (0, 0), "a fifth is left");
        // A core corresponds to 125 thousandths of a device; 24 % of that for four cores is 120.
        assert_eq!((lost(89, EVERYTHING), lost(96, EVERYTHING)), ((60, 540), (120, 1_080)));
    }

    #[test]
    fn certain_refusals_prefer_one_large_task() {
        // One twentieth is a flat cost: that of the mean task of 20 cores.
        assert_eq!((lost(100, EVERYTHING), lost(150, EVERYTHING)), ((144, 1_056), (144, 1_056)));
    }

    #[test]
    fn certain_refusals_cost_more_the_less_is_known() {
        // Twice as much with 4,900 known tasks, and 4.5 times as much at most.
        assert_eq!((lost(100, 4_900), lost(100, 400)), ((288, 2_112), (648, 4_752)));
        assert_eq!(lost(100, 0), lost(100, 400));
        assert_eq!(lost(96, 0), lost(96, EVERYTHING), "no refusal is certain");
    }
}
