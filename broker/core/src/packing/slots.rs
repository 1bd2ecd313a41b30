//! Slots: how many more gangs of a sort a node holds. Room for gangs is what becomes rare first, and unseen.

use std::collections::BTreeMap;

use super::mix::TypeInMix;
use super::node_state::{NodeState, Shape};
use super::offers::ShapeTotal;
use super::task::{Task, WHOLE};

/// Sorts of gang that have slots: those with most demand.
pub(super) const SORTS: usize = 8;

/// One part in so many of the demand is expected as gangs that fill a node, whether any were seen or not, and more where few
/// tasks are known: history is short, and such a gang finds no place any more once every node is broken into.
const UNSEEN: u128 = 500;

/// One gang more than expected may come, in the unit of what is expected: where hardly any is, that is most of what to fear.
const ONE_MORE: u128 = 1 << 10;

/// Slots of a node, or a difference of them, by sort.
pub(super) type Slots = [i32; SORTS];

/// Gangs of one size that could run on the same shapes.
#[derive(Clone, Debug)]
struct Sort {
    devices: u16,
    /// For each shape, whether it could run them.
    shapes: Vec<bool>,
    /// CPU that a node must have for each of them, in thousandths of a core: somewhat less than they ask for on average.
    cpu_milli: u64,
    /// Main memory likewise, in MiB.
    memory_mib: u64,
    /// Such tasks for 2^32 thousandths of devices asked for.
    rate: u64,
}

/// What the mix says of gangs.
#[derive(Clone, Debug, Default)]
pub(super) struct Gangs {
    sorts: Vec<Sort>,
}

impl Gangs {
    /// Of a mix; one task in `unseen_part` is expected that it does not tell of.
    pub(super) fn of(mix: &[TypeInMix<'_>], shapes: &[Shape], totals: &[ShapeTotal], unseen_part: u64) -> Self {
        let tasks: u128 = mix.iter().map(|of| u128::from(of.weight)).sum();
        let demand: u128 = mix.iter().map(|of| u128::from(of.weight) * u128::from(of.task.device_milli())).sum();
        // In 2^16ths of a task, so that the unseen ones need not be whole.
        let mut by_sort: BTreeMap<(u16, Vec<bool>), (u128, u128, u128)> = BTreeMap::new();
        for of in mix.iter().filter(|of| of.task.devices > 1) {
            let (tasks, cpu, memory) = by_sort.entry((of.task.devices, of.shapes.clone())).or_default();
            let weight = u128::from(of.weight) << 16;
            *tasks += weight;
            // Gangs that ask for less than the mean come too.
            *cpu += weight * u128::from(of.task.cpu_milli) * 10 / 11;
            *memory += weight * u128::from(of.task.memory_mib) * 10 / 11;
        }
        let capacity: u128 = totals.iter().map(|total| u128::from(total.device_milli)).sum();
        for (shape, total) in shapes.iter().zip(totals).filter(|(shape, _)| shape.devices > 1) {
            let gang = whole_node(shape);
            let open = shapes.iter().map(|other| other.could_run(&gang)).collect();
            let at_least = (demand << 16) / (UNSEEN * u128::from(gang.device_milli()));
            let unseen = at_least.max((tasks << 16) / u128::from(unseen_part.max(1)));
            let unseen = unseen * u128::from(total.device_milli) / capacity.max(1);
            let (tasks, cpu, memory) = by_sort.entry((shape.devices, open)).or_default();
            *tasks += unseen;
            *cpu += unseen * u128::from(gang.cpu_milli);
            *memory += unseen * u128::from(gang.memory_mib);
        }
        let small = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let mut sorts: Vec<Sort> = by_sort
            .into_iter()
            .map(|((devices, shapes), (tasks, cpu, memory))| Sort {
                devices,
                shapes,
                cpu_milli: small(cpu / tasks.max(1)),
                memory_mib: small(memory / tasks.max(1)),
                rate: small((tasks << 16) / demand.max(1)),
            })
            .collect();
        sorts.sort_by_key(|sort| std::cmp::Reverse(sort.rate.saturating_mul(u64::from(sort.devices))));
        sorts.truncate(SORTS);
        Self { sorts }
    }

    /// Slots of a node of `shape` in `state`.
    pub(super) fn slots(&self, shape: u32, state: &NodeState) -> Slots {
        let whole = u64::try_from(state.whole_devices()).unwrap_or(u64::MAX);
        let mut slots = Slots::default();
        for (slots, sort) in slots.iter_mut().zip(&self.sorts).filter(|(_, sort)| sort.shapes[shape as usize]) {
            let by_cpu = state.cpu_milli.checked_div(sort.cpu_milli).unwrap_or(u64::MAX);
            let by_memory = state.memory_mib.checked_div(sort.memory_mib).unwrap_or(u64::MAX);
            *slots = i32::try_from((whole / u64::from(sort.devices)).min(by_cpu).min(by_memory)).unwrap_or(i32::MAX);
        }
        slots
    }

    /// Price of one slot of each sort in thousandths of a device, given what is free and how many slots are left.
    pub(super) fn prices(&self, free_milli: u64, left: &[i64; SORTS], weight: i64) -> [i64; SORTS] {
        let mut prices = [0; SORTS];
        for ((price, left), sort) in prices.iter_mut().zip(left).zip(&self.sorts) {
            let expected = (u128::from(sort.rate) * u128::from(free_milli)) >> 22;
            let left = u128::try_from((*left).max(1)).unwrap_or(1);
            let pressure = i64::try_from(((expected + ONE_MORE) / left).min(2 << 10)).unwrap_or(0);
            *price = (weight * i64::from(sort.devices) * pressure) >> 10;
        }
        prices
    }
}

/// A gang that takes all devices of a node, and nearly all else.
fn whole_node(shape: &Shape) -> Task {
    Task {
        cpu_milli: shape.cpu_milli * 15 / 16,
        memory_mib: shape.memory_mib * 15 / 16,
        devices: shape.devices,
        milli: WHOLE,
        kinds: Vec::new(),
    }
}
