//! Compares the index with a plain scan, and checks what state values imply.

use std::collections::BTreeMap;

use super::cost::{Costs, KnownAssignments};
use super::rollout::ROLLOUTS;
use super::scarcity::SCARCITY_ONE;
use super::{Mix, NodeState, Shape, StateIndex, Task};

/// A deterministic generator of cases.
struct Cases(u64);

impl Cases {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const fn shape(cpu: u64, devices: u16, kind: u32) -> Shape {
    Shape { cpu_milli: cpu * 1_000, memory_mib: cpu * 4_096, devices, kind }
}

const SHAPES: [Shape; 4] = [shape(96, 8, 0), shape(104, 2, 1), shape(16, 2, 2), shape(128, 8, 3)];

fn task(cpu: u64, devices: u16, milli: u16) -> Task {
    Task { cpu_milli: cpu * 1_000, memory_mib: cpu * 2_048, devices, milli, kinds: Vec::new() }
}

fn kinds_of_task() -> Vec<Task> {
    let bound = Task { kinds: vec![1, 3], ..task(4, 1, 1_000) };
    let tasks = [task(4, 1, 500), task(8, 1, 250), task(6, 1, 1_000), task(12, 2, 1_000), task(64, 8, 1_000)];
    tasks.into_iter().chain([bound, task(12, 0, 0), task(120, 8, 1_000), task(2, 1, 70)]).collect()
}

fn mix() -> Mix {
    let mut mix = Mix::default();
    for (weight, task) in [300, 200, 400, 20, 10, 40, 100, 3, 50].into_iter().zip(kinds_of_task()) {
        mix.add(task, weight);
    }
    mix
}

fn index(nodes: impl Iterator<Item = u32>) -> StateIndex {
    let mut index = StateIndex::default();
    for node in nodes {
        let shape = &SHAPES[node as usize % SHAPES.len()];
        index.set(0, node, shape, shape.idle());
    }
    index.expect(mix());
    index
}

/// The formula in the documentation of `packing`, evaluated node by node without caches.
fn by_scan(nodes: &BTreeMap<u32, NodeState>, task: &Task) -> Option<(i64, u32, u16)> {
    let mut fresh = index(nodes.keys().copied());
    let (shapes, totals, mut states) = fresh.parts();
    let mut costs = Costs::new(&mix(), shapes.values(), &totals);
    let numbers: BTreeMap<u32, u32> =
        (nodes.keys()).map(|node| (*node, shapes.intern(SHAPES[*node as usize % SHAPES.len()].clone()))).collect();
    let (mut free_milli, mut slots) = (vec![0; shapes.len()], [0; super::gang_slots::GANG_CLASSES]);
    for (node, free) in nodes {
        free_milli[numbers[node] as usize] += free.device_milli();
        for (sum, more) in slots.iter_mut().zip(costs.gangs.slots(numbers[node], free)) {
            *sum += i64::from(more);
        }
    }
    let scarcity = costs.scarcity.of_shapes(&free_milli);
    let prices = costs.slot_prices(free_milli.iter().sum(), &slots);
    let mut best = None;
    for (node, free) in nodes {
        let number = numbers[node];
        if !shapes.get(number).could_run(task) {
            continue;
        }
        let state = states.intern((number, free.clone()));
        let mut assignments = Vec::new();
        costs.assignments(&mut states, task, &mut KnownAssignments::default(), state, None, |assignment| {
            assignments.push(assignment)
        });
        for assignment in assignments {
            let price = scarcity[number as usize] * task.device_milli() * ROLLOUTS as u64 / SCARCITY_ONE;
            let lost: i64 = costs
                .slots
                .get(assignment.loss)
                .iter()
                .zip(prices)
                .map(|(slots, price)| i64::from(*slots) * price)
                .sum();
            let tie = free.digest_with(shapes.digest(number)) >> 32;
            let cost = i64::from(assignment.cost) + i64::try_from(price).unwrap() + lost;
            let found = (cost, tie, *node, assignment.level);
            if best.is_none_or(|best| found < best) {
                best = Some(found);
            }
        }
    }
    best.map(|(cost, _, node, level)| (cost, node, level))
}

/// Cost, node and level of a choice.
type Chosen = (i64, u32, u16);

fn choose(index: &mut StateIndex, task: &Task) -> Option<Chosen> {
    let asked = index.ask(task);
    let choice = index.choose(0, asked)?;
    Some((choice.cost, index.first_node(choice)?, choice.level))
}

/// Places and frees tasks at random; calls `look` with each choice.
fn live(index: &mut StateIndex, steps: u64, mut look: impl FnMut(&StateIndex, &Task, Option<Chosen>)) {
    let (tasks, mut cases, mut running) = (kinds_of_task(), Cases(7), Vec::new());
    for _ in 0..steps {
        if cases.below(4) == 0 && !running.is_empty() {
            let (node, before): (u32, NodeState) = running.swap_remove(cases.below(running.len() as u64) as usize);
            // Restoring the node revisits earlier states.
            index.update(0, node, before);
            running.retain(|(other, _)| *other != node);
            continue;
        }
        let task = &tasks[cases.below(tasks.len() as u64) as usize];
        let choice = choose(index, task);
        look(index, task, choice);
        let Some((_, node, level)) = choice else { continue };
        let before = index.free(0, node).unwrap().clone();
        index.update(0, node, before.after(task, level).unwrap());
        running.push((node, before));
    }
}

#[test]
fn the_index_agrees_with_a_scan_of_all_nodes() {
    let (mut placed, mut refused) = (0, 0);
    live(&mut index(0..13), 150, |index, task, choice| {
        let nodes = (0..13).map(|node| (node, index.free(0, node).unwrap().clone())).collect();
        assert_eq!(choice, by_scan(&nodes, task), "{task:?}");
        *(if choice.is_some() { &mut placed } else { &mut refused }) += 1;
    });
    assert!(placed > 50 && refused > 5, "{placed} placed, {refused} refused: too few cases");
}

#[test]
fn choices_do_not_depend_on_history() {
    let mut index = index(0..13);
    live(&mut index, 400, |_, _, _| {});
    let free: Vec<NodeState> = (0..13).map(|node| index.free(0, node).unwrap().clone()).collect();
    let mut fresh = self::index((0..13).rev());
    for (node, free) in (0..).zip(free) {
        fresh.update(0, node, free);
    }
    for task in kinds_of_task() {
        assert_eq!(choose(&mut index, &task), choose(&mut fresh, &task), "{task:?}");
    }
    index.forget();
    for task in kinds_of_task() {
        assert_eq!(choose(&mut index, &task), choose(&mut fresh, &task), "{task:?}, after dropping states");
    }
}

#[test]
fn a_share_fills_a_partly_used_device() {
    let mut index = index(0..8);
    let share = task(4, 1, 500);
    let (_, first, level) = choose(&mut index, &share).unwrap();
    let free = index.free(0, first).unwrap().after(&share, level).unwrap();
    index.update(0, first, free);
    let (_, second, level) = choose(&mut index, &share).unwrap();
    assert_eq!((second, level), (first, 500));
}

#[test]
fn a_removed_node_is_not_chosen() {
    let mut index = index(0..4);
    let gang = task(120, 8, 1_000);
    assert_eq!(choose(&mut index, &gang).map(|(_, node, _)| node), Some(3));
    index.remove(0, 3);
    let asked = index.ask(&gang);
    assert_eq!(index.choose(0, asked), None);
    assert_eq!(index.free(0, 3), None);
}

#[test]
fn each_donor_has_its_own_choice_and_none_beats_its_bound() {
    let mut index = StateIndex::default();
    for node in 0..12 {
        let shape = &SHAPES[node as usize % SHAPES.len()];
        index.set(node % 3, node / 3, shape, shape.idle());
    }
    index.expect(mix());
    let (tasks, mut cases, mut told_apart) = (kinds_of_task(), Cases(11), 0);
    for _ in 0..120 {
        let task = &tasks[cases.below(tasks.len() as u64) as usize];
        let asked = index.ask(task);
        let least: Vec<Option<i64>> = (0..3).map(|donor| index.idle_milli_at_least(donor, asked)).collect();
        let choices: Vec<_> = (0..3).map(|donor| index.choose(donor, asked)).collect();
        for (least, choice) in least.iter().zip(&choices) {
            assert!(choice.is_none_or(|choice| least.unwrap() <= choice.idle_milli()), "{task:?}");
        }
        let cheapest = choices.iter().zip(0..).filter_map(|(choice, donor)| Some((choice.as_ref()?.cost, donor))).min();
        told_apart += usize::from(choices.iter().flatten().any(|choice| Some(choice.cost) != cheapest.map(|it| it.0)));
        let Some((_, donor)) = cheapest else { continue };
        let choice = choices[donor as usize].unwrap();
        let node = index.first_node(choice).unwrap();
        let free = index.free(donor, node).unwrap().after(task, choice.level).unwrap();
        index.update(donor, node, free);
    }
    assert!(told_apart > 10, "donors hardly ever differ: too few cases");
    index.clear(1);
    for task in &tasks {
        let asked = index.ask(task);
        assert_eq!(index.choose(1, asked), None);
    }
    assert_eq!(index.free(1, 0), None);
}

#[test]
fn one_more_node_among_many_leaves_state_values_unchanged() {
    let mut index = index(0..64);
    let share = task(4, 1, 500);
    let asked = index.ask(&share);
    let before = index.choose(0, asked).unwrap().cost;
    index.set(0, 64, &SHAPES[0], SHAPES[0].idle());
    let asked = index.ask(&share);
    let after = index.choose(0, asked).unwrap().cost;
    // Prices follow free capacity, costs do not.
    assert!(before.abs_diff(after) < 100, "{before} {after}");
}

#[test]
fn tasks_are_placed_without_history() {
    let mut index = StateIndex::default();
    index.set(0, 7, &SHAPES[0], SHAPES[0].idle());
    assert_eq!(choose(&mut index, &task(4, 1, 500)).map(|(_, node, _)| node), Some(7));
}

/// 10 nodes with eight devices; only two have enough CPU for the largest gang.
fn few_large_nodes(history: Mix) -> StateIndex {
    let mut index = StateIndex::default();
    for node in 0..10 {
        let shape = &SHAPES[if node < 2 { 3 } else { 0 }];
        index.set(0, node, shape, shape.idle());
    }
    index.expect(history);
    index
}

#[test]
fn unrestricted_work_avoids_nodes_that_a_gang_needs() {
    let mut history = Mix::known_from(150);
    [(task(12, 1, 1_000), 100), (task(8, 0, 0), 20), (task(4, 1, 500), 30)]
        .into_iter()
        .for_each(|(task, weight)| history.add(task, weight));
    let mut index = few_large_nodes(history);
    // The history knows no such gang, and seven in ten devices are taken.
    for (task, times) in [(task(8, 0, 0), 8), (task(4, 1, 500), 16), (task(12, 1, 1_000), 48)] {
        for _ in 0..times {
            let (_, node, level) = choose(&mut index, &task).unwrap();
            let free = index.free(0, node).unwrap().after(&task, level).unwrap();
            index.update(0, node, free);
        }
    }
    let largest = Task { memory_mib: 480 * 1_024, ..task(120, 8, 1_000) };
    let asked = index.ask(&largest);
    assert!(index.choose(0, asked).is_some(), "{:?} and {:?} are free", index.free(0, 0), index.free(0, 1));
}
