//! The index of distinct node states: which nodes share a state, and the cheapest state for each task type.

pub(crate) mod choose;

use smallvec::SmallVec;

use self::choose::Prices;
use crate::collections::int_map::IntMap;
use crate::collections::interner::Interner;
use crate::scheduler::packing::assignments::LiveGroups;
use crate::scheduler::packing::cost::{Costs, States};
use crate::scheduler::packing::gang_slots::{GANG_CLASSES, SlotCounts};
use crate::scheduler::packing::log::{Log, LogEntry};
use crate::scheduler::packing::mix::Mix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::ranking::{Ranking, Tiers};
use crate::scheduler::packing::task::Task;

pub use self::choose::TaskId;

/// Interned states, including unused ones; a state with eight devices takes about 200 bytes.
const MAX_STATES: usize = 1 << 21;
/// Interned task types.
const MAX_TASKS: usize = 1 << 14;
/// Assignments and known states over all rankings, 24 bytes each. Beyond that, the rankings unused the longest are
/// dropped.
const MAX_RANKING_ITEMS: usize = 1 << 25;
/// Costs are recomputed once the capacity of a shape changed by more than 1/8.
const MAX_DRIFT_FRACTION: u64 = 8;

/// Marks a node that is in no group.
const NO_GROUP: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
struct DonorNodes {
    /// The group of each node, by node number.
    nodes: Vec<u32>,
}

/// Nodes of one donor in one state.
#[derive(Clone, Debug)]
struct NodeGroup {
    donor: u32,
    shape: u32,
    state: u32,
    /// Free thousandths of devices on each node.
    device_milli: u64,
    /// Id of the slot counts of each node, while costs are known.
    slots: u32,
    /// Node numbers, descending.
    nodes: SmallVec<[u32; 4]>,
    /// Place of its log entry, while it has nodes.
    entry: u32,
}

/// The nodes of all donors by state. State values and scarcity cover all donors together: work that finds no room at
/// one donor goes to another.
#[derive(Clone, Debug, Default)]
pub struct StateIndex {
    shapes: Interner<Shape>,
    totals: Vec<ShapeTotal>,
    free_milli: Vec<u64>,
    slots: [i64; GANG_CLASSES],
    states: States,
    donors: Vec<DonorNodes>,
    groups: Vec<NodeGroup>,
    /// Group numbers by donor and state.
    group_numbers: IntMap<(u32, u32), u32>,
    live: LiveGroups,
    /// Number of nodes.
    nodes: usize,
    log: Log,
    mix: Mix,
    /// `None` while stale: shapes or mix changed.
    costs: Option<Costs>,
    /// Tiers under the current costs.
    tiers: Tiers,
    /// `totals` when costs were computed.
    totals_then: Vec<ShapeTotal>,
    /// `None` while stale.
    prices: Option<Prices>,
    tasks: Interner<Task>,
    /// By task number.
    rankings: Vec<Option<Ranking>>,
    /// Counts changes of nodes and their free amounts.
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

    /// Adds `node` to `donor`, or replaces it.
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
        self.donors[donor as usize].nodes[node as usize] = NO_GROUP;
        self.leave(node, group);
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

    /// The free amounts of `node` at `donor`.
    #[must_use]
    pub fn free(&self, donor: u32, node: u32) -> Option<&NodeState> {
        let group = self.group_of(donor, node)?;
        Some(&self.states.get(self.groups[group as usize].state).1)
    }

    /// Sets the free amounts of `node` at `donor`. Unknown nodes are ignored.
    pub fn update(&mut self, donor: u32, node: u32, free: NodeState) {
        let Some(before) = self.group_of(donor, node) else { return };
        let NodeGroup { shape, state, .. } = self.groups[before as usize];
        let next = self.states.intern((shape, free));
        if next != state {
            let group = self.group(donor, next);
            self.leave(node, before);
            self.join(donor, node, group);
        }
    }

    /// Drops states that no node is in, and everything computed for them.
    pub(crate) fn forget(&mut self) {
        let states = std::mem::take(&mut self.states);
        let groups = std::mem::take(&mut self.groups);
        self.group_numbers.clear();
        self.live = LiveGroups::default();
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
        group.copied().filter(|group| *group != NO_GROUP)
    }

    /// The number of the group of a donor and a state; creates the group if needed.
    fn group(&mut self, donor: u32, state: u32) -> u32 {
        if let Some(group) = self.group_numbers.get((donor, state)) {
            return group;
        }
        let group = u32::try_from(self.groups.len()).unwrap_or(NO_GROUP);
        let (shape, free) = self.states.get(state);
        let slots = self.costs.as_mut().map_or(0, |costs| costs.slots_of(*shape, free));
        let device_milli = free.device_milli();
        let shape = *shape;
        self.groups.push(NodeGroup { donor, shape, state, device_milli, slots, nodes: SmallVec::new(), entry: 0 });
        self.group_numbers.insert((donor, state), group);
        group
    }

    fn join(&mut self, donor: u32, node: u32, number: u32) {
        if self.donors.len() <= donor as usize {
            self.donors.resize(donor as usize + 1, DonorNodes::default());
        }
        let nodes = &mut self.donors[donor as usize].nodes;
        if nodes.len() <= node as usize {
            nodes.resize(node as usize + 1, NO_GROUP);
        }
        nodes[node as usize] = number;
        self.note_change();
        let group = &mut self.groups[number as usize];
        let shape = group.shape;
        self.free_milli[shape as usize] += group.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(group.slots), 1);
        }
        if group.nodes.is_empty() {
            let free = &self.states.get(group.state).1;
            let digest = free.digest_with(self.shapes.digest(shape));
            group.entry = self.log.push(LogEntry::new(number, group.state, donor, shape, free, digest));
            self.live.insert(number);
        }
        let at = group.nodes.partition_point(|other| *other > node);
        group.nodes.insert(at, node);
    }

    fn leave(&mut self, node: u32, number: u32) {
        self.note_change();
        let group = &mut self.groups[number as usize];
        let shape = group.shape;
        self.free_milli[shape as usize] -= group.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(group.slots), -1);
        }
        let at = group.nodes.partition_point(|other| *other > node);
        group.nodes.remove(at);
        if group.nodes.is_empty() {
            self.log.mark_dead(group.entry);
            self.live.remove(number);
        }
    }

    fn note_change(&mut self) {
        self.changes += 1;
        self.prices = None;
    }

    /// Recomputes stale costs, and drops caches that outgrew their bounds.
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
        if let Some(kept_before) = self.log.compact(|group, place| groups[group as usize].entry = place) {
            self.rankings.iter_mut().flatten().for_each(|ranking| ranking.log_compacted(&kept_before));
            self.forget_rankings();
        }
    }

    /// Whether the capacity of a shape changed by more than [`MAX_DRIFT_FRACTION`] since costs were computed.
    fn has_drifted(&self) -> bool {
        let far = |(now, then): (&ShapeTotal, &ShapeTotal)| {
            let apart = |now: u64, then: u64| now.abs_diff(then) > then / MAX_DRIFT_FRACTION;
            apart(now.device_milli, then.device_milli) || apart(now.cpu_milli, then.cpu_milli)
        };
        self.totals.len() != self.totals_then.len() || self.totals.iter().zip(&self.totals_then).any(far)
    }

    fn compute_costs(&mut self) {
        let mut costs = Costs::new(&self.mix, self.shapes.values(), &self.totals);
        self.slots = [0; GANG_CLASSES];
        for group in &mut self.groups {
            let (shape, free) = self.states.get(group.state);
            group.slots = costs.slots_of(*shape, free);
            add_slots(
                &mut self.slots,
                costs.slots.get(group.slots),
                i64::try_from(group.nodes.len()).unwrap_or(i64::MAX),
            );
        }
        self.tiers = Tiers::new(costs.scarcity.equal_scarcity_classes(self.shapes.len()));
        self.costs = Some(costs);
        self.totals_then.clone_from(&self.totals);
        self.prices = None;
        self.rankings.clear();
    }

    /// Drops the less recently used half of the rankings if all together exceed [`MAX_RANKING_ITEMS`].
    fn forget_rankings(&mut self) {
        let held: usize = self.rankings.iter().flatten().map(Ranking::held).sum();
        if held <= MAX_RANKING_ITEMS {
            return;
        }
        let mut by_age: Vec<Option<u64>> =
            self.rankings.iter().flatten().map(|ranking| ranking.answers.as_of).collect();
        by_age.sort_unstable();
        let middle = by_age[by_age.len() / 2];
        let old = |ranking: &Option<Ranking>| ranking.as_ref().is_some_and(|ranking| ranking.answers.as_of <= middle);
        self.rankings.iter_mut().filter(|ranking| old(ranking)).for_each(|ranking| *ranking = None);
    }
}

fn add_slots(total: &mut [i64; GANG_CLASSES], slots: &SlotCounts, times: i64) {
    for (total, slots) in total.iter_mut().zip(slots) {
        *total += times * i64::from(*slots);
    }
}

#[cfg(test)]
impl StateIndex {
    /// Shapes, their totals, and an empty table of states.
    pub(crate) fn parts(&mut self) -> (&mut Interner<Shape>, Vec<ShapeTotal>, States) {
        (&mut self.shapes, self.totals.clone(), States::default())
    }
}
