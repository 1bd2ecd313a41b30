//! The index of distinct node states: who has which, and the cheapest of them for each type of task.

pub(crate) mod choose;

use smallvec::SmallVec;

use self::choose::Prices;
use crate::collections::int_map::IntMap;
use crate::collections::interner::Interner;
use crate::scheduler::packing::assignments::Live;
use crate::scheduler::packing::cost::{Costs, States};
use crate::scheduler::packing::gang_slots::{SORTS, Slots};
use crate::scheduler::packing::log::{Entry, Log};
use crate::scheduler::packing::mix::Mix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::ranking::{Ranking, Tiers};
use crate::scheduler::packing::task::Task;

pub use self::choose::TaskId;

/// States that are remembered, past ones among them; a state with eight devices takes about 200 bytes.
const MAX_STATES: usize = 1 << 21;
/// Types of task that are remembered.
const MAX_TASKS: usize = 1 << 14;
/// Assignments that rankings hold and states that they know of, 24 bytes each: of more, the rankings that were not asked for the
/// longest are forgotten.
const MAX_HELD: usize = 1 << 25;
/// Costs are computed again once the nodes of a shape became more or fewer by so large a part of what there was: 1/8.
const DRIFT: u64 = 8;

/// No group.
const NONE: u32 = u32::MAX;

/// Nodes of one donor.
#[derive(Clone, Debug, Default)]
struct DonorNodes {
    /// The group of each node, by its number.
    nodes: Vec<u32>,
}

/// Nodes of one donor in one state.
#[derive(Clone, Debug)]
struct NodeGroup {
    donor: u32,
    shape: u32,
    state: u32,
    /// Free thousandths of devices of each of its nodes.
    device_milli: u64,
    /// Number of the slots of each of its nodes, as long as costs are known.
    slots: u32,
    /// Numbers of its nodes, descending.
    nodes: SmallVec<[u32; 4]>,
    /// Place of its entry in the log, while it has nodes.
    entry: u32,
}

/// Nodes of all donors by state, with what is needed to choose among them. What a state is worth and what is scarce is a
/// matter of all donors: work that finds no place at one goes to another.
#[derive(Clone, Debug, Default)]
pub struct StateIndex {
    shapes: Interner<Shape>,
    totals: Vec<ShapeTotal>,
    free_milli: Vec<u64>,
    slots: [i64; SORTS],
    states: States,
    donors: Vec<DonorNodes>,
    groups: Vec<NodeGroup>,
    /// By donor and state.
    group_numbers: IntMap<(u32, u32), u32>,
    live: Live,
    /// How many nodes there are.
    nodes: usize,
    log: Log,
    mix: Mix,
    /// `None`: shapes or mix changed since costs were computed.
    costs: Option<Costs>,
    /// As rankings sort nodes; of these costs.
    tiers: Tiers,
    /// What there was of each shape when costs were computed.
    totals_then: Vec<ShapeTotal>,
    /// `None`: something changed since.
    prices: Option<Prices>,
    tasks: Interner<Task>,
    /// By number of the task.
    rankings: Vec<Option<Ranking>>,
    /// Changes so far of what nodes there are and what is free on them.
    changes: u64,
}

impl StateIndex {
    /// Expects work like `mix` from now on.
    pub fn expect(&mut self, mix: Mix) {
        if self.mix != mix {
            self.mix = mix;
            self.costs = None;
        }
    }

    /// Adds `node` to `donor`, or replaces what is known of it.
    pub fn set(&mut self, donor: u32, node: u32, shape: &Shape, free: NodeState) {
        self.remove(donor, node);
        let shape_number = self.shapes.intern_ref(shape);
        let at = shape_number as usize;
        if self.totals.len() <= at {
            self.totals.push(ShapeTotal::default());
            self.free_milli.push(0);
            self.costs = None;
        }
        self.totals[at].device_milli += shape.idle().device_milli();
        self.totals[at].cpu_milli += shape.cpu_milli;
        self.nodes += 1;
        let state = self.states.intern((shape_number, free));
        let group = self.group(donor, state);
        self.join(donor, node, group);
    }

    /// Forgets `node` of `donor`.
    pub fn remove(&mut self, donor: u32, node: u32) {
        let Some(group) = self.group_of(donor, node) else { return };
        self.donors[donor as usize].nodes[node as usize] = NONE;
        self.count_out(node, group);
        let shape = self.groups[group as usize].shape;
        let idle = self.shapes.get(shape);
        let total = &mut self.totals[shape as usize];
        total.device_milli -= idle.idle().device_milli();
        total.cpu_milli -= idle.cpu_milli;
        self.nodes -= 1;
    }

    /// Forgets all nodes of `donor`.
    pub fn clear(&mut self, donor: u32) {
        let nodes = self.donors.get(donor as usize).map_or(0, |donor| donor.nodes.len());
        for node in 0..u32::try_from(nodes).unwrap_or(u32::MAX) {
            self.remove(donor, node);
        }
    }

    /// What is free on `node` of `donor`.
    #[must_use]
    pub fn free(&self, donor: u32, node: u32) -> Option<&NodeState> {
        let group = self.group_of(donor, node)?;
        Some(&self.states.get(self.groups[group as usize].state).1)
    }

    /// Says that `node` of `donor` has `free` now.
    pub fn update(&mut self, donor: u32, node: u32, free: NodeState) {
        let Some(before) = self.group_of(donor, node) else { return };
        let NodeGroup { shape, state, .. } = self.groups[before as usize];
        let next = self.states.intern((shape, free));
        if next != state {
            let group = self.group(donor, next);
            self.count_out(node, before);
            self.join(donor, node, group);
        }
    }

    /// Starts over with the states that some node is in: past ones, and what was computed for them, go.
    pub(crate) fn forget(&mut self) {
        let states = std::mem::take(&mut self.states);
        let groups = std::mem::take(&mut self.groups);
        self.group_numbers.clear();
        self.live = Live::default();
        self.log = Log::default();
        self.free_milli.fill(0);
        self.costs = None;
        for group in groups.into_iter().filter(|group| !group.nodes.is_empty()) {
            let state = self.states.intern(states.get(group.state).clone());
            let number = self.group(group.donor, state);
            for node in group.nodes.into_iter().rev() {
                self.join(group.donor, node, number);
            }
        }
    }

    fn group_of(&self, donor: u32, node: u32) -> Option<u32> {
        let group = self.donors.get(donor as usize)?.nodes.get(node as usize);
        group.copied().filter(|group| *group != NONE)
    }

    /// Number of the nodes of a donor that are in a state.
    fn group(&mut self, donor: u32, state: u32) -> u32 {
        if let Some(group) = self.group_numbers.get((donor, state)) {
            return group;
        }
        let group = u32::try_from(self.groups.len()).unwrap_or(NONE);
        let (shape, free) = self.states.get(state);
        let slots = self.costs.as_mut().map_or(0, |costs| costs.slots_of(*shape, free));
        let device_milli = free.device_milli();
        let shape = *shape;
        self.groups.push(NodeGroup { donor, shape, state, device_milli, slots, nodes: SmallVec::new(), entry: 0 });
        self.group_numbers.insert((donor, state), group);
        group
    }

    /// Counts in that `node` of `donor` is in `group`.
    fn join(&mut self, donor: u32, node: u32, number: u32) {
        if self.donors.len() <= donor as usize {
            self.donors.resize(donor as usize + 1, DonorNodes::default());
        }
        let nodes = &mut self.donors[donor as usize].nodes;
        if nodes.len() <= node as usize {
            nodes.resize(node as usize + 1, NONE);
        }
        nodes[node as usize] = number;
        self.changed();
        let group = &mut self.groups[number as usize];
        let shape = group.shape;
        self.free_milli[shape as usize] += group.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(group.slots), 1);
        }
        if group.nodes.is_empty() {
            let free = &self.states.get(group.state).1;
            let digest = free.digest_with(self.shapes.digest(shape));
            group.entry = self.log.push(Entry::new((number, group.state), (donor, shape), free, digest));
            self.live.set(number, true);
        }
        let at = group.nodes.partition_point(|other| *other > node);
        group.nodes.insert(at, node);
    }

    /// Counts out that `node` is in `group`.
    fn count_out(&mut self, node: u32, number: u32) {
        self.changed();
        let group = &mut self.groups[number as usize];
        let shape = group.shape;
        self.free_milli[shape as usize] -= group.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(group.slots), -1);
        }
        let at = group.nodes.partition_point(|other| *other > node);
        group.nodes.remove(at);
        if group.nodes.is_empty() {
            self.log.end(group.entry);
            self.live.set(number, false);
        }
    }

    fn changed(&mut self) {
        self.changes += 1;
        self.prices = None;
    }

    /// Computes what went stale, and forgets what is too much or long past.
    fn prepare(&mut self) {
        if self.tasks.len() > MAX_TASKS {
            self.tasks = Interner::default();
            self.costs = None;
        }
        if self.states.len().max(self.groups.len()) > MAX_STATES.max(4 * self.nodes) {
            self.forget();
        }
        if self.costs.as_ref().is_none_or(Costs::is_overgrown) || self.has_drifted() {
            self.compute_costs();
        }
        let groups = &mut self.groups;
        if let Some(ahead) = self.log.shorten(|group, place| groups[group as usize].entry = place) {
            self.rankings.iter_mut().flatten().for_each(|ranking| ranking.log_shortened(&ahead));
            self.forget_rankings();
        }
    }

    /// Whether there are so many more nodes of some shape than when costs were computed, or fewer, that they are others
    /// now.
    fn has_drifted(&self) -> bool {
        let far = |(now, then): (&ShapeTotal, &ShapeTotal)| {
            let apart = |now: u64, then: u64| now.abs_diff(then) > then / DRIFT;
            apart(now.device_milli, then.device_milli) || apart(now.cpu_milli, then.cpu_milli)
        };
        self.totals.len() != self.totals_then.len() || self.totals.iter().zip(&self.totals_then).any(far)
    }

    fn compute_costs(&mut self) {
        let mut costs = Costs::new(&self.mix, self.shapes.values(), &self.totals);
        self.slots = [0; SORTS];
        for group in &mut self.groups {
            let (shape, free) = self.states.get(group.state);
            group.slots = costs.slots_of(*shape, free);
            add_slots(
                &mut self.slots,
                costs.slots.get(group.slots),
                i64::try_from(group.nodes.len()).unwrap_or(i64::MAX),
            );
        }
        self.tiers = Tiers::new(costs.scarcity.alike(self.shapes.len()));
        self.costs = Some(costs);
        self.totals_then.clone_from(&self.totals);
        self.prices = None;
        self.rankings.clear();
    }

    /// Forgets rankings that were not asked for the longest, if all together hold too much.
    fn forget_rankings(&mut self) {
        let held: usize = self.rankings.iter().flatten().map(Ranking::held).sum();
        if held <= MAX_HELD {
            return;
        }
        let mut by_age: Vec<Option<u64>> =
            self.rankings.iter().flatten().map(|ranking| ranking.answers.after).collect();
        by_age.sort_unstable();
        let middle = by_age[by_age.len() / 2];
        let old = |ranking: &Option<Ranking>| ranking.as_ref().is_some_and(|ranking| ranking.answers.after <= middle);
        self.rankings.iter_mut().filter(|ranking| old(ranking)).for_each(|ranking| *ranking = None);
    }
}

fn add_slots(total: &mut [i64; SORTS], slots: &Slots, times: i64) {
    for (total, slots) in total.iter_mut().zip(slots) {
        *total += times * i64::from(*slots);
    }
}

#[cfg(test)]
impl StateIndex {
    /// Shapes, what there is of each, and an empty table of states.
    pub(crate) fn parts(&mut self) -> (&mut Interner<Shape>, Vec<ShapeTotal>, States) {
        (&mut self.shapes, self.totals.clone(), States::default())
    }
}
