//! Gang slots: how many more gangs of each class a node can hold. Room for gangs runs out first, and unnoticed.
//!
//! The price of the last of `left` slots is the value of a gang times the chance that demand reaches `left` slots
//! (Littlewood's rule, 1972, for airline seats). Let demand have mean `m` and variance `v`. Where `left > m`, the
//! chance is at most `v / (v + (left − m)²)`, whatever the distribution (Cantelli's inequality).

use std::collections::BTreeMap;

use crate::scheduler::packing::mix::TypeInMix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::task::{Task, WHOLE};

/// Gang classes with slots: those with the highest demand per slot on idle nodes.
pub(crate) const GANG_CLASSES: usize = 8;

/// Weights are fixed-point numbers with 16 fractional bits, to represent rare gangs.
const GANG_WEIGHT_BITS: u32 = 16;
/// 1.0 in the fixed point of expected tasks.
const ONE_TASK: u128 = 1 << 10;
/// The variance due to uncertainty counts this many times, as if its standard deviation were twice as large.
const UNCERTAINTY_FACTOR: u128 = 4;
/// Upper bound on expected tasks.
const MAX_EXPECTED: u128 = 1 << 40;

/// Slots of a node, or a difference of them, by gang class.
pub(crate) type SlotCounts = [i32; GANG_CLASSES];

/// Gangs of one size that could run on the same shapes.
#[derive(Clone, Debug)]
struct GangClass {
    devices: u16,
    /// By shape, whether it could run them.
    shapes: Vec<bool>,
    /// CPU that a node needs per gang, in thousandths of a core.
    cpu_milli: u64,
    /// Main memory that a node needs per gang, in MiB.
    memory_mib: u64,
    /// Slots of this class taken per 2^32 thousandths of devices requested.
    rate: u64,
}

/// Gang demand of the mix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs {
    classes: Vec<GangClass>,
    /// Tasks expected per 2^32 thousandths of devices requested, for each task that the mix was estimated from.
    rate_per_known_task: u64,
}

/// Gang types of one class in the mix: weight, CPU and memory of each.
type ClassDemand = Vec<(u128, u64, u64)>;

impl Gangs {
    /// Derives classes from a mix estimated from `known_tasks` tasks.
    pub(crate) fn of(mix: &[TypeInMix<'_>], shapes: &[Shape], totals: &[ShapeTotal], known_tasks: u64) -> Self {
        let tasks: u128 = mix.iter().map(|of| u128::from(of.weight)).sum();
        let demand: u128 = mix.iter().map(|of| u128::from(of.weight) * u128::from(of.task.device_milli())).sum();
        let rate = |weight: u128| saturating_u64((weight << (32 - GANG_WEIGHT_BITS)) / demand.max(1));
        let classes: Vec<GangClass> = by_class(mix, shapes)
            .into_iter()
            .map(|((devices, shapes), asked)| GangClass {
                devices,
                shapes,
                cpu_milli: typical(asked.iter().map(|&(weight, cpu, _)| (weight, cpu))),
                memory_mib: typical(asked.iter().map(|&(weight, _, memory)| (weight, memory))),
                rate: rate(asked.iter().map(|(weight, ..)| weight).sum()),
            })
            .collect();
        let capacity = totals.iter().map(|total| total.device_milli).sum();
        let mut ranked: Vec<(u128, GangClass)> = classes
            .iter()
            .map(|class| {
                let taken = classes.iter().map(|other| other.rate.saturating_mul(class.slots_taken_by_one(other)));
                let all = GangClass { rate: taken.fold(0, u64::saturating_add), ..class.clone() };
                let wanted = u128::from(class.devices) * (expected(class.rate, capacity) + ONE_TASK);
                (wanted / u128::from(class.slots_when_idle(shapes, totals).max(1)), all)
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let rate_per_known_task = rate((tasks << GANG_WEIGHT_BITS) / u128::from(known_tasks.max(1)));
        Self { classes: ranked.into_iter().map(|(_, class)| class).take(GANG_CLASSES).collect(), rate_per_known_task }
    }

    /// Slots of each class on a node of `shape` in `state`.
    pub(crate) fn slots(&self, shape: u32, state: &NodeState) -> SlotCounts {
        let mut slots = SlotCounts::default();
        for (slots, class) in slots.iter_mut().zip(&self.classes).filter(|(_, class)| class.shapes[shape as usize]) {
            *slots = i32::try_from(class.slots_in(state)).unwrap_or(i32::MAX);
        }
        slots
    }

    /// Price of one slot of each class in thousandths of a device, while `free_milli` thousandths of devices are free
    /// and `left` slots remain. `weight` is the value of one device of a gang.
    pub(crate) fn prices(&self, free_milli: u64, left: &[i64; GANG_CLASSES], weight: i64) -> [i64; GANG_CLASSES] {
        let mut prices = [0; GANG_CLASSES];
        for ((price, left), class) in prices.iter_mut().zip(left).zip(&self.classes) {
            *price = self.price(class, free_milli, u64::try_from(*left).unwrap_or(0), weight);
        }
        prices
    }

    /// The price of a slot of `class`. A class seen `n` times is expected `n · rate_per_known_task` times. Arrivals
    /// vary by the mean (Poisson); the estimate of their rate varies by `(n + 1) · rate_per_known_task²` (the posterior
    /// of the rate), times [`UNCERTAINTY_FACTOR`]. One more task of variance keeps the price of the last slot above
    /// zero even when hardly any demand is expected.
    fn price(&self, class: &GangClass, free_milli: u64, left: u64, weight: i64) -> i64 {
        let (mean, rate_per_known_task) =
            (expected(class.rate, free_milli), expected(self.rate_per_known_task, free_milli));
        let variance = mean * ONE_TASK
            + (mean * rate_per_known_task + rate_per_known_task * rate_per_known_task) * UNCERTAINTY_FACTOR
            + ONE_TASK * ONE_TASK;
        let ahead = (u128::from(left) * ONE_TASK).saturating_sub(mean).min(MAX_EXPECTED);
        let value = u128::from(class.devices) * u128::try_from(weight).unwrap_or(0);
        i64::try_from(value * variance / (variance + ahead * ahead)).unwrap_or(i64::MAX)
    }
}

impl GangClass {
    /// Number of such gangs that fit on a node in `state`, provided that its shape could run them.
    fn slots_in(&self, state: &NodeState) -> u64 {
        let whole = u64::try_from(state.whole_devices()).unwrap_or(u64::MAX);
        self.slots_with(whole, state.cpu_milli, state.memory_mib)
    }

    fn slots_with(&self, whole_devices: u64, cpu_milli: u64, memory_mib: u64) -> u64 {
        let by_cpu = cpu_milli.checked_div(self.cpu_milli).unwrap_or(u64::MAX);
        let by_memory = memory_mib.checked_div(self.memory_mib).unwrap_or(u64::MAX);
        (whole_devices / u64::from(self.devices)).min(by_cpu).min(by_memory)
    }

    /// Slots if all nodes were idle.
    fn slots_when_idle(&self, shapes: &[Shape], totals: &[ShapeTotal]) -> u64 {
        let of_shape = |((shape, total), _): ((&Shape, &ShapeTotal), _)| {
            let idle = shape.idle();
            self.slots_in(&idle).saturating_mul(total.device_milli / idle.device_milli().max(1))
        };
        shapes.iter().zip(totals).zip(&self.shapes).filter(|(_, open)| **open).map(of_shape).sum()
    }

    /// Slots of this class that one gang of `other` takes: nonzero if it needs at least as much and can run on no other
    /// shapes.
    fn slots_taken_by_one(&self, other: &Self) -> u64 {
        let only_here = other.shapes.iter().zip(&self.shapes).all(|(other, here)| *here || !*other);
        if only_here { self.slots_with(u64::from(other.devices), other.cpu_milli, other.memory_mib) } else { 0 }
    }
}

/// Gang types of the mix, by number of devices and possible shapes. Each shape adds one whole-node gang of minimal
/// weight, which stands for work never seen: such a gang finds no place once every node is partly taken.
fn by_class(mix: &[TypeInMix<'_>], shapes: &[Shape]) -> BTreeMap<(u16, Vec<bool>), ClassDemand> {
    let mut by_class: BTreeMap<(u16, Vec<bool>), ClassDemand> = BTreeMap::new();
    for of in mix.iter().filter(|of| of.task.devices > 1) {
        let asked = (u128::from(of.weight) << GANG_WEIGHT_BITS, of.task.cpu_milli, of.task.memory_mib);
        by_class.entry((of.task.devices, of.shapes.clone())).or_default().push(asked);
    }
    for gang in shapes.iter().filter(|shape| shape.devices > 1).map(whole_node) {
        let open = shapes.iter().map(|shape| shape.could_run(&gang)).collect();
        by_class.entry((gang.devices, open)).or_default().push((1, gang.cpu_milli, gang.memory_mib));
    }
    by_class
}

/// A gang that takes all devices of a node and nearly all of its CPU and memory.
fn whole_node(shape: &Shape) -> Task {
    Task {
        cpu_milli: shape.cpu_milli * 31 / 32,
        memory_mib: shape.memory_mib * 31 / 32,
        devices: shape.devices,
        milli: WHOLE,
        kinds: Vec::new(),
    }
}

/// The weighted mean less the mean deviation: below the mean, since smaller gangs occur too.
fn typical(amounts: impl Iterator<Item = (u128, u64)> + Clone) -> u64 {
    let all = amounts.clone().map(|(weight, _)| weight).sum::<u128>().max(1);
    let amounts = amounts.map(|(weight, amount)| (weight, u128::from(amount)));
    let mean = amounts.clone().map(|(weight, amount)| weight * amount).sum::<u128>() / all;
    let deviation = amounts.map(|(weight, amount)| weight * amount.abs_diff(mean)).sum::<u128>() / all;
    saturating_u64(mean.saturating_sub(deviation))
}

/// Tasks or slots expected until `free_milli` are taken, in units of [`ONE_TASK`].
fn expected(rate: u64, free_milli: u64) -> u128 {
    ((u128::from(rate) * u128::from(free_milli) * ONE_TASK) >> 32).min(MAX_EXPECTED)
}

fn saturating_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Shape = Shape { cpu_milli: 128_000, memory_mib: 786_432, devices: 8, kind: 0 };
    const SMALL: Shape = Shape { cpu_milli: 96_000, memory_mib: 393_216, devices: 8, kind: 1 };
    const SHAPES: [Shape; 2] = [LARGE, SMALL];

    fn gang(cores: u64, devices: u16) -> Task {
        Task { cpu_milli: cores * 1_000, memory_mib: cores * 2_048, devices, milli: WHOLE, kinds: Vec::new() }
    }

    /// Gangs on 10 large and 90 small nodes.
    fn gangs(tasks: &[(Task, u64)], known_tasks: u64) -> Gangs {
        let total = |nodes: u64| ShapeTotal { device_milli: nodes * 8_000, cpu_milli: 0 };
        let mix: Vec<TypeInMix<'_>> = tasks
            .iter()
            .map(|(task, weight)| TypeInMix {
                task,
                weight: *weight,
                shapes: SHAPES.iter().map(|shape| shape.could_run(task)).collect(),
            })
            .collect();
        Gangs::of(&mix, &SHAPES, &[total(10), total(90)], known_tasks)
    }

    /// Price of a slot for gangs that only large nodes can hold; `free` counts devices.
    fn price_on_large(gangs: &Gangs, free: u64, left: i64) -> i64 {
        let at = gangs.classes.iter().position(|class| class.shapes == [true, false]).unwrap();
        gangs.prices(free * 1_000, &[left; GANG_CLASSES], 1_000)[at]
    }

    #[test]
    fn the_last_slots_are_the_expensive_ones() {
        let gangs = gangs(&[(gang(4, 1), 990), (gang(120, 8), 10)], 1_000);
        let prices: Vec<i64> = [0, 1, 4, 8, 16, 64].map(|left| price_on_large(&gangs, 800, left)).to_vec();
        assert!(prices.is_sorted_by(|a, b| a >= b), "{prices:?}");
        // Gangs will take 80 of the 800 devices, that is 10 slots: demand for those is as good as certain.
        assert_eq!(prices[2], 8_000);
        assert!(prices[5] < 100, "{prices:?}");
        assert!(price_on_large(&gangs, 8, 8) < 200, "hardly any demand remains");
    }

    #[test]
    fn a_small_sample_raises_slot_prices() {
        let singles = [(gang(4, 1), 100)];
        let (few, many) = (gangs(&singles, 129), gangs(&singles, 8_001));
        assert!(price_on_large(&few, 800, 10) > 10 * price_on_large(&many, 800, 10));
        assert!(price_on_large(&many, 800, 1) > 2_000, "a first one may come");
    }

    #[test]
    fn larger_gangs_take_slots_of_smaller_ones() {
        let large = (gang(120, 8), 10);
        let both = gangs(&[(gang(4, 1), 970), (gang(64, 8), 20), large.clone()], 1_000);
        let rate = |gangs: &Gangs, shapes: [bool; 2]| gangs.classes.iter().find(|s| s.shapes == shapes).unwrap().rate;
        assert!(rate(&both, [true, true]).abs_diff(3 * rate(&both, [true, false])) < 10);
        let of_large = gangs(&[(gang(4, 1), 990), large], 1_000);
        assert!(price_on_large(&both, 800, 12) < price_on_large(&of_large, 800, 12), "other work takes devices, too");
    }

    #[test]
    fn a_shape_with_few_nodes_keeps_its_class_among_many() {
        let tasks: Vec<(Task, u64)> =
            (2..8).flat_map(|devices| [(gang(8, devices), 50), (gang(97, devices), 1)]).collect();
        let gangs = gangs(&tasks, 1_000);
        assert_eq!(gangs.classes.len(), GANG_CLASSES);
        let largest = |class: &GangClass| class.devices == 8 && class.shapes == [true, false];
        assert!(gangs.classes.iter().any(largest), "{:?}", gangs.classes);
    }

    #[test]
    fn a_class_of_unequal_gangs_needs_less_than_its_mean() {
        assert_eq!(typical([(1, 88_000), (3, 88_000)].into_iter()), 88_000);
        assert_eq!(typical([(1, 40_000), (1, 80_000)].into_iter()), 40_000);
        assert_eq!(typical([(3, 40_000), (1, 80_000)].into_iter()), 35_000);
    }
}
