//! Slots: how many more gangs of a sort a node holds. Room for gangs is what becomes rare first, and unseen.
//!
//! A slot is worth what may be asked of it: the price of the last of `left` slots is the worth of a gang times the
//! chance that as many are asked for yet (Littlewood's rule, 1972, for seats of an aircraft). With a mean `m` and a
//! variance `v` of what comes, that chance is at most `v / (v + (left − m)²)` where `left > m` (Cantelli's inequality),
//! whatever the distribution.

use std::collections::BTreeMap;

use crate::scheduler::packing::mix::TypeInMix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::task::{Task, WHOLE};

/// Sorts of gang that have slots: those that ask for most devices for each slot that idle nodes have for them.
pub(crate) const SORTS: usize = 8;

/// Weights are counted in parts of 2^16 of a task, so that gangs can be thought of that hardly come.
const WEIGHT_BITS: u32 = 16;
/// One task where tasks are expected, in fixed point.
const ONE: u128 = 1 << 10;
/// What is unknown of how much comes is minded as if it were twice as wide: its variance counts so many times.
const DOUBT: u128 = 4;
/// More tasks than that are as good as so many.
const MOST_EXPECTED: u128 = 1 << 40;

/// Slots of a node, or a difference of them, by sort.
pub(crate) type Slots = [i32; SORTS];

/// Gangs of one size that could run on the same shapes.
#[derive(Clone, Debug)]
struct Sort {
    devices: u16,
    /// For each shape, whether it could run them.
    shapes: Vec<bool>,
    /// CPU that a node must have for each of them, in thousandths of a core.
    cpu_milli: u64,
    /// Main memory likewise, in MiB.
    memory_mib: u64,
    /// Such slots that are taken for 2^32 thousandths of devices asked for.
    rate: u64,
}

/// What the mix says of gangs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs {
    sorts: Vec<Sort>,
    /// For each task that the mix is known from, so many are to come for 2^32 thousandths of devices asked for.
    each: u64,
}

/// Gangs of one sort in the mix: weight, CPU and memory of each type.
type TaskId = Vec<(u128, u64, u64)>;

impl Gangs {
    /// Of a mix that is known from so many tasks.
    pub(crate) fn of(mix: &[TypeInMix<'_>], shapes: &[Shape], totals: &[ShapeTotal], known_tasks: u64) -> Self {
        let tasks: u128 = mix.iter().map(|of| u128::from(of.weight)).sum();
        let demand: u128 = mix.iter().map(|of| u128::from(of.weight) * u128::from(of.task.device_milli())).sum();
        let rate = |weight: u128| small((weight << (32 - WEIGHT_BITS)) / demand.max(1));
        let sorts: Vec<Sort> = by_sort(mix, shapes)
            .into_iter()
            .map(|((devices, shapes), asked)| Sort {
                devices,
                shapes,
                cpu_milli: typical(asked.iter().map(|&(weight, cpu, _)| (weight, cpu))),
                memory_mib: typical(asked.iter().map(|&(weight, _, memory)| (weight, memory))),
                rate: rate(asked.iter().map(|(weight, ..)| weight).sum()),
            })
            .collect();
        let capacity = totals.iter().map(|total| total.device_milli).sum();
        let mut ranked: Vec<(u128, Sort)> = sorts
            .iter()
            .map(|sort| {
                let taken = sorts.iter().map(|other| other.rate.saturating_mul(sort.taken_by(other)));
                let all = Sort { rate: taken.fold(0, u64::saturating_add), ..sort.clone() };
                let wanted = u128::from(sort.devices) * (expected(sort.rate, capacity) + ONE);
                (wanted / u128::from(sort.slots_of_all(shapes, totals).max(1)), all)
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let each = rate((tasks << WEIGHT_BITS) / u128::from(known_tasks.max(1)));
        Self { sorts: ranked.into_iter().map(|(_, sort)| sort).take(SORTS).collect(), each }
    }

    /// Slots of a node of `shape` in `state`.
    pub(crate) fn slots(&self, shape: u32, state: &NodeState) -> Slots {
        let mut slots = Slots::default();
        for (slots, sort) in slots.iter_mut().zip(&self.sorts).filter(|(_, sort)| sort.shapes[shape as usize]) {
            *slots = i32::try_from(sort.slots_in(state)).unwrap_or(i32::MAX);
        }
        slots
    }

    /// Price of one slot of each sort in thousandths of a device, given what is free and how many slots are left;
    /// `weight` is the worth of one device of a gang.
    pub(crate) fn prices(&self, free_milli: u64, left: &[i64; SORTS], weight: i64) -> [i64; SORTS] {
        let mut prices = [0; SORTS];
        for ((price, left), sort) in prices.iter_mut().zip(left).zip(&self.sorts) {
            *price = self.price(sort, free_milli, u64::try_from(*left).unwrap_or(0), weight);
        }
        prices
    }

    /// The price of a slot of `sort`. A sort that was seen `n` times is expected `n · each` times, give or take: what
    /// comes varies as much as that (Poisson), and what is known of it by `(n + 1) · each²` (the posterior of its
    /// rate), [`DOUBT`] times. One more, and the last slot is worth something even when hardly anything is to come.
    fn price(&self, sort: &Sort, free_milli: u64, left: u64, weight: i64) -> i64 {
        let (mean, each) = (expected(sort.rate, free_milli), expected(self.each, free_milli));
        let variance = mean * ONE + (mean * each + each * each) * DOUBT + ONE * ONE;
        let ahead = (u128::from(left) * ONE).saturating_sub(mean).min(MOST_EXPECTED);
        let worth = u128::from(sort.devices) * u128::try_from(weight).unwrap_or(0);
        i64::try_from(worth * variance / (variance + ahead * ahead)).unwrap_or(i64::MAX)
    }
}

impl Sort {
    /// How many such gangs fit on a node in `state`, if its shape could run them.
    fn slots_in(&self, state: &NodeState) -> u64 {
        let whole = u64::try_from(state.whole_devices()).unwrap_or(u64::MAX);
        self.slots_with(whole, state.cpu_milli, state.memory_mib)
    }

    fn slots_with(&self, whole_devices: u64, cpu_milli: u64, memory_mib: u64) -> u64 {
        let by_cpu = cpu_milli.checked_div(self.cpu_milli).unwrap_or(u64::MAX);
        let by_memory = memory_mib.checked_div(self.memory_mib).unwrap_or(u64::MAX);
        (whole_devices / u64::from(self.devices)).min(by_cpu).min(by_memory)
    }

    /// Slots of idle nodes.
    fn slots_of_all(&self, shapes: &[Shape], totals: &[ShapeTotal]) -> u64 {
        let of_shape = |((shape, total), _): ((&Shape, &ShapeTotal), _)| {
            let idle = shape.idle();
            self.slots_in(&idle).saturating_mul(total.device_milli / idle.device_milli().max(1))
        };
        shapes.iter().zip(totals).zip(&self.shapes).filter(|(_, open)| **open).map(of_shape).sum()
    }

    /// How many slots of this sort one gang of `other` takes: gangs that ask for as much and more, and find no other
    /// room.
    fn taken_by(&self, other: &Self) -> u64 {
        let only_here = other.shapes.iter().zip(&self.shapes).all(|(other, here)| *here || !*other);
        if only_here { self.slots_with(u64::from(other.devices), other.cpu_milli, other.memory_mib) } else { 0 }
    }
}

/// Gangs of the mix by how many devices they ask for and where they could run. For each shape there is one that hardly
/// comes: so much is unknown of it as of all that was never seen, and it finds no place any more once every node is
/// broken into.
fn by_sort(mix: &[TypeInMix<'_>], shapes: &[Shape]) -> BTreeMap<(u16, Vec<bool>), TaskId> {
    let mut by_sort: BTreeMap<(u16, Vec<bool>), TaskId> = BTreeMap::new();
    for of in mix.iter().filter(|of| of.task.devices > 1) {
        let asked = (u128::from(of.weight) << WEIGHT_BITS, of.task.cpu_milli, of.task.memory_mib);
        by_sort.entry((of.task.devices, of.shapes.clone())).or_default().push(asked);
    }
    for gang in shapes.iter().filter(|shape| shape.devices > 1).map(whole_node) {
        let open = shapes.iter().map(|shape| shape.could_run(&gang)).collect();
        by_sort.entry((gang.devices, open)).or_default().push((1, gang.cpu_milli, gang.memory_mib));
    }
    by_sort
}

/// A gang that takes all devices of a node, and nearly all else.
fn whole_node(shape: &Shape) -> Task {
    Task {
        cpu_milli: shape.cpu_milli * 31 / 32,
        memory_mib: shape.memory_mib * 31 / 32,
        devices: shape.devices,
        milli: WHOLE,
        kinds: Vec::new(),
    }
}

/// The mean of weighted amounts less their mean deviation from it: gangs that ask for less than the mean come too.
fn typical(amounts: impl Iterator<Item = (u128, u64)> + Clone) -> u64 {
    let all = amounts.clone().map(|(weight, _)| weight).sum::<u128>().max(1);
    let amounts = amounts.map(|(weight, amount)| (weight, u128::from(amount)));
    let mean = amounts.clone().map(|(weight, amount)| weight * amount).sum::<u128>() / all;
    let deviation = amounts.map(|(weight, amount)| weight * amount.abs_diff(mean)).sum::<u128>() / all;
    small(mean.saturating_sub(deviation))
}

/// Tasks, or slots, that are to come until `free_milli` are taken, in parts of [`ONE`].
fn expected(rate: u64, free_milli: u64) -> u128 {
    ((u128::from(rate) * u128::from(free_milli) * ONE) >> 32).min(MOST_EXPECTED)
}

fn small(number: u128) -> u64 {
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

    /// Of 10 large nodes and 90 small ones.
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

    /// Price of a slot for gangs that only large nodes hold, with so many left and `free` devices.
    fn price_on_large(gangs: &Gangs, free: u64, left: i64) -> i64 {
        let at = gangs.sorts.iter().position(|sort| sort.shapes == [true, false]).unwrap();
        gangs.prices(free * 1_000, &[left; SORTS], 1_000)[at]
    }

    #[test]
    fn the_last_slots_are_the_dear_ones() {
        let gangs = gangs(&[(gang(4, 1), 990), (gang(120, 8), 10)], 1_000);
        let prices: Vec<i64> = [0, 1, 4, 8, 16, 64].map(|left| price_on_large(&gangs, 800, left)).to_vec();
        assert!(prices.is_sorted_by(|a, b| a >= b), "{prices:?}");
        // Of 800 devices 80 go to gangs, ten in number: as many slots are as good as asked for.
        assert_eq!(prices[2], 8_000);
        assert!(prices[5] < 100, "{prices:?}");
        assert!(price_on_large(&gangs, 8, 8) < 200, "nothing is left that could come");
    }

    #[test]
    fn what_few_tasks_tell_of_is_feared_more() {
        let singles = [(gang(4, 1), 100)];
        let (few, many) = (gangs(&singles, 129), gangs(&singles, 8_001));
        assert!(price_on_large(&few, 800, 10) > 10 * price_on_large(&many, 800, 10));
        assert!(price_on_large(&many, 800, 1) > 2_000, "one may come, and be the first");
    }

    #[test]
    fn gangs_that_need_more_take_slots_of_those_that_need_less() {
        let large = (gang(120, 8), 10);
        let both = gangs(&[(gang(4, 1), 970), (gang(64, 8), 20), large.clone()], 1_000);
        let rate = |gangs: &Gangs, shapes: [bool; 2]| gangs.sorts.iter().find(|s| s.shapes == shapes).unwrap().rate;
        assert!(rate(&both, [true, true]).abs_diff(3 * rate(&both, [true, false])) < 10);
        let of_large = gangs(&[(gang(4, 1), 990), large], 1_000);
        assert!(price_on_large(&both, 800, 12) < price_on_large(&of_large, 800, 12), "others take devices, too");
    }

    #[test]
    fn shapes_of_few_nodes_are_kept_in_mind_among_many_sorts() {
        let tasks: Vec<(Task, u64)> =
            (2..8).flat_map(|devices| [(gang(8, devices), 50), (gang(97, devices), 1)]).collect();
        let gangs = gangs(&tasks, 1_000);
        assert_eq!(gangs.sorts.len(), SORTS);
        let largest = |sort: &Sort| sort.devices == 8 && sort.shapes == [true, false];
        assert!(gangs.sorts.iter().any(largest), "{:?}", gangs.sorts);
    }

    #[test]
    fn a_sort_asks_for_somewhat_less_than_its_mean_if_its_gangs_differ() {
        assert_eq!(typical([(1, 88_000), (3, 88_000)].into_iter()), 88_000);
        assert_eq!(typical([(1, 40_000), (1, 80_000)].into_iter()), 40_000);
        assert_eq!(typical([(3, 40_000), (1, 80_000)].into_iter()), 35_000);
    }
}
