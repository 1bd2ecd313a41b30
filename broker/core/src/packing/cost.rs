//! What tasks cost on states, remembered.

use super::interner::Interner;
use super::mix::{Mix, TypeInMix};
use super::node_state::{NodeState, Shape};
use super::offers::{ShapeTotal, deal};
use super::rollout::{FUTURES, Futures};
use super::scarcity::Scarcity;
use super::slots::{Gangs, SORTS, Slots};
use super::task::Task;

/// Weight of what a node is left with: it decides between states that are worth the same.
const LEFTOVER_WEIGHT: u64 = 30;
/// CPU that counts as much as all devices of [`LARGE_NODE_DEVICE_MILLI`], in thousandths of a core.
const LARGE_NODE_CPU_MILLI: u64 = 128_000;
/// Devices of a large node in thousandths.
const LARGE_NODE_DEVICE_MILLI: u64 = 8_000;
/// Price of a slot per device of it, in thousandths of a device, where it is as scarce as it is wanted.
const SLOT_WEIGHT: i64 = 30;

/// What a core is worth to a task without devices, in percent of its part of the devices.
const CORE_WORTH: u128 = 12;
/// From which CPU asked for, in percent of what there is, CPU counts as scarce, and from which as altogether so.
const CPU_PRESSURE: (u128, u128) = (82, 95);

/// States by number, with their shape.
pub(super) type States = Interner<(u32, NodeState)>;

/// One way to put a task on a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// What it costs, without prices.
    pub(super) cost: i64,
    /// Slots that it takes away.
    pub(super) slots: Slots,
    /// Free thousandths of the device that a share comes from.
    pub(super) level: u16,
}

/// What costs are computed from, and those that are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    futures: Vec<Futures>,
    pub(super) scarcity: Scarcity,
    pub(super) gangs: Gangs,
    values: Vec<Option<i64>>,
    scratch: Vec<u16>,
}

impl Costs {
    pub(super) fn new(mix: &Mix, shapes: &[Shape], totals: &[ShapeTotal]) -> Self {
        let mix = mix.over(shapes);
        let milli_per_core = milli_per_core(&mix, totals);
        let futures = deal(&mix, totals).into_iter().map(|weights| {
            let types: Vec<(&Task, u64)> = mix.iter().zip(weights).map(|(of, weight)| (of.task, weight)).collect();
            Futures::draw(&types, milli_per_core)
        });
        Self {
            futures: futures.collect(),
            scarcity: Scarcity::of(&mix),
            gangs: Gangs::of(&mix, shapes, totals),
            values: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Thousandths of devices that stay idle on `state` in the end, summed over the futures.
    fn value(&mut self, states: &States, state: u32) -> i64 {
        let at = state as usize;
        if self.values.len() <= at {
            self.values.resize(states.len().max(at + 1), None);
        }
        if let Some(value) = self.values[at] {
            return value;
        }
        let (shape, free) = states.get(state);
        let value = self.futures[*shape as usize].idle_after(free, &mut self.scratch);
        self.values[at] = Some(value);
        value
    }

    /// All ways to put `task` on `state`.
    pub(super) fn candidates(&mut self, states: &mut States, task: &Task, state: u32) -> Vec<Candidate> {
        let (shape, free) = states.get(state);
        let shape = *shape;
        if !free.fits(task) {
            return Vec::new();
        }
        let free = free.clone();
        let (before, slots) = (self.value(states, state), self.gangs.slots(shape, &free));
        let levels: Vec<u16> = if task.devices == 1 { free.levels(task.milli).collect() } else { vec![0] };
        let ways = levels.into_iter().filter_map(|level| {
            let next = free.after(task, level)?;
            let left = leftover(&next);
            let mut taken = slots;
            for (taken, kept) in taken.iter_mut().zip(self.gangs.slots(shape, &next)) {
                *taken -= kept;
            }
            let number = states.intern((shape, next));
            Some(Candidate { cost: self.value(states, number) - before + left, slots: taken, level })
        });
        ways.collect()
    }

    /// Prices of slots now.
    pub(super) fn slot_prices(&self, free_milli: u64, left: &[i64; SORTS]) -> [i64; SORTS] {
        self.gangs.prices(free_milli, left, SLOT_WEIGHT * FUTURES as i64)
    }
}

/// What it is to refuse a core to a task without devices, in thousandths of a device.
///
/// A core is worth its part of the devices, times [`CORE_WORTH`], where CPU runs out before devices do; nothing where there
/// is CPU enough; and in between in between.
fn milli_per_core(mix: &[TypeInMix<'_>], totals: &[ShapeTotal]) -> u64 {
    let devices: u128 = totals.iter().map(|total| u128::from(total.device_milli)).sum();
    let cpu: u128 = totals.iter().map(|total| u128::from(total.cpu_milli)).sum();
    let wanted = |of: fn(&Task) -> u64| mix.iter().map(move |t| u128::from(t.weight) * u128::from(of(t.task))).sum();
    let (wanted_devices, wanted_cpu): (u128, u128) = (wanted(Task::device_milli), wanted(|task| task.cpu_milli));
    // CPU that is asked for when all devices are, in percent of what there is.
    let pressure = (wanted_cpu * devices * 100).checked_div(wanted_devices * cpu).unwrap_or(0);
    let (none, full) = CPU_PRESSURE;
    let scarce = pressure.clamp(none, full) - none;
    let worth = devices * 1_000 * CORE_WORTH * scarce / (cpu.max(1) * 100 * (full - none));
    u64::try_from(worth).unwrap_or(u64::MAX)
}

/// What a node is left with, weighed.
fn leftover(state: &NodeState) -> i64 {
    let weight = LEFTOVER_WEIGHT * FUTURES as u64 / 2;
    let left =
        weight * state.cpu_milli / LARGE_NODE_CPU_MILLI + weight * state.device_milli() / LARGE_NODE_DEVICE_MILLI;
    i64::try_from(left).unwrap_or(i64::MAX)
}
