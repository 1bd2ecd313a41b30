//! What it is to refuse work without devices, where CPU runs out before devices do.
//!
//! Work with devices that is refused leaves them idle, which says what it costs. Work without any leaves nothing idle
//! that counts: without a worth of its own it would pay for every device that is given away.

use crate::scheduler::packing::mix::TypeInMix;
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::task::Task;

/// What a core is worth where CPU is scarce, in percent of its part of the devices.
const CORE_WORTH: u128 = 24;
/// From which CPU asked for, in percent of what there is, CPU begins to be scarce, and from which it is altogether so.
const SCARCE: (u128, u128) = (82, 96);
/// From which CPU asked for, in the same percent, some tasks begin to be refused whatever is done, and from which it is
/// sure.
const SHORT: (u128, u128) = (96, 100);
/// How many times as much a core is worth in addition where some are refused for sure, divided by the square root of
/// the number of tasks that are known. As a standard error goes: the fewer they are, the less sure it is that the CPU
/// that is left is where it will be asked for.
const UNSURE: u128 = 70;
/// So many tasks are taken for known at least, so that a core is worth a few times as much at most.
const KNOWN_AT_LEAST: u64 = 400;
/// Of what tasks are worth where some are refused, so many thousandths are the same for each: rather one that is large
/// than several that are small.
const SAME_FOR_EACH: u128 = 50;

/// What is lost with each task without devices that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusals {
    /// For each core that it asked for, in millionths of a device.
    micro_per_core: u64,
    /// For itself, in millionths of a device.
    micro_each: u64,
}

impl Refusals {
    /// Under so much demand, of which so many tasks are known: nothing where CPU is enough.
    pub(crate) fn of(mix: &[TypeInMix<'_>], totals: &[ShapeTotal], known_tasks: u64) -> Self {
        let devices: u128 = totals.iter().map(|total| u128::from(total.device_milli)).sum();
        let cpu: u128 = totals.iter().map(|total| u128::from(total.cpu_milli)).sum();
        let wanted =
            |of: fn(&Task) -> u64| mix.iter().map(move |t| u128::from(t.weight) * u128::from(of(t.task))).sum();
        let (wanted_devices, wanted_cpu): (u128, u128) = (wanted(Task::device_milli), wanted(|task| task.cpu_milli));
        // CPU that is asked for when all devices are, in percent of what there is.
        let pressure = (wanted_cpu * devices * 100).checked_div(wanted_devices * cpu).unwrap_or(0);
        let within = |(none, full): (u128, u128)| (pressure.clamp(none, full) - none, full - none);
        let (scarce, of) = within(SCARCE);
        let certain = devices * 1_000_000 * CORE_WORTH * scarce / (cpu.max(1) * 100 * of);
        let (short, of) = within(SHORT);
        let unsure = certain * UNSURE * short / (u128::from(known_tasks.max(KNOWN_AT_LEAST).isqrt()) * of);
        let micro_per_core = certain + unsure;
        let each = micro_per_core * SAME_FOR_EACH * short / (1_000 * of);
        Self {
            micro_per_core: u64::try_from(micro_per_core - each).unwrap_or(u64::MAX),
            micro_each: u64::try_from(each * mean_cpu_milli(mix) / 1_000).unwrap_or(u64::MAX),
        }
    }

    /// What is lost with `task`, in thousandths of a device.
    pub(crate) fn milli(&self, task: &Task) -> u64 {
        if task.devices > 0 {
            return 0;
        }
        (task.cpu_milli.saturating_mul(self.micro_per_core) / 1_000).saturating_add(self.micro_each) / 1_000
    }
}

/// CPU that tasks without devices ask for, on average.
fn mean_cpu_milli(mix: &[TypeInMix<'_>]) -> u128 {
    let without = || mix.iter().filter(|of| of.task.devices == 0);
    let cpu: u128 = without().map(|of| u128::from(of.weight) * u128::from(of.task.cpu_milli)).sum();
    let tasks: u128 = without().map(|of| u128::from(of.weight)).sum();
    cpu / tasks.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As good as all tasks are known.
    const EVERYTHING: u64 = u64::MAX;

    fn without_devices(cores: u64) -> Task {
        Task { cpu_milli: cores * 1_000, memory_mib: 1, devices: 0, milli: 0, kinds: Vec::new() }
    }

    /// What is lost with tasks of 4 cores and of 36 where a hundred nodes have 64 cores and 8 devices each, and so much
    /// CPU is asked for when all devices are, in percent of what there is. So many tasks are known.
    fn lost(percent: u64, known_tasks: u64) -> (u64, u64) {
        // With 80 devices go 640 cores: two tasks without devices ask for 40 of them, those with devices for the rest.
        let cpu_milli = percent * 80 - 500;
        let with = Task { cpu_milli, memory_mib: 1, devices: 1, milli: 1_000, kinds: Vec::new() };
        let (small, large) = (without_devices(4), without_devices(36));
        let mix = [(&with, 80), (&small, 1), (&large, 1)].map(|(task, weight)| TypeInMix {
            task,
            weight,
            shapes: vec![true],
        });
        let refusals = Refusals::of(&mix, &[ShapeTotal { device_milli: 800_000, cpu_milli: 6_400_000 }], known_tasks);
        assert_eq!(refusals.milli(&with), 0, "its devices are what is lost");
        (refusals.milli(&small), refusals.milli(&large))
    }

    #[test]
    fn a_core_is_worth_something_where_cpu_runs_out_before_devices_do() {
        assert_eq!(lost(80, EVERYTHING), (0, 0), "a fifth is left");
        // A core's part of the devices are 125 thousandths of one, 24 % of that for four cores is 120.
        assert_eq!((lost(89, EVERYTHING), lost(96, EVERYTHING)), ((60, 540), (120, 1_080)));
    }

    #[test]
    fn where_some_are_refused_for_sure_it_is_rather_a_large_one() {
        // A twentieth is the same for each, as for the mean of 20 cores.
        assert_eq!((lost(100, EVERYTHING), lost(150, EVERYTHING)), ((144, 1_056), (144, 1_056)));
    }

    #[test]
    fn where_some_are_refused_for_sure_a_core_is_worth_more_the_less_is_known() {
        // With 4,900 tasks known twice as much, and four times and a half as much at most.
        assert_eq!((lost(100, 4_900), lost(100, 400)), ((288, 2_112), (648, 4_752)));
        assert_eq!(lost(100, 0), lost(100, 400));
        assert_eq!(lost(96, 0), lost(96, EVERYTHING), "nothing is sure to be refused");
    }
}
