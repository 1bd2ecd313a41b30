//! Cached costs of tasks on node states.

use crate::collections::int_map::IntMap;
use crate::collections::interner::Interner;
use crate::scheduler::packing::gang_slots::{GANG_CLASSES, Gangs, SlotCounts};
use crate::scheduler::packing::mix::Mix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::{ShapeTotal, split_demand};
use crate::scheduler::packing::refusals::Refusals;
use crate::scheduler::packing::rollout::{ROLLOUTS, Rollouts};
use crate::scheduler::packing::scarcity::Scarcity;
use crate::scheduler::packing::task::Task;

/// Weight of the capacity left on a node: it breaks ties between states of equal value.
const LEFTOVER_WEIGHT: u64 = 30;
/// CPU that weighs as much as [`LARGE_NODE_DEVICE_MILLI`], in thousandths of a core.
const LARGE_NODE_CPU_MILLI: u64 = 128_000;
/// Devices of a large node in thousandths.
const LARGE_NODE_DEVICE_MILLI: u64 = 8_000;
/// Price of a slot that will surely be used, in thousandths of a device per device of the slot.
const SLOT_WEIGHT: i64 = 100;

/// Interned pairs of a shape number and a state.
pub(crate) type States = Interner<(u32, NodeState)>;

/// Cached assignments of (task, state) pairs that have several: 16 bytes each.
const MAX_ASSIGNMENTS: usize = 1 << 22;
/// Marks a state whose value is not computed yet.
const UNKNOWN_VALUE: i64 = i64::MIN;

/// The cost of taking a share from a device with `level` free, or of taking whole devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelCost {
    /// Without prices.
    pub(crate) cost: i32,
    /// Id of the slots lost.
    pub(crate) loss: u32,
    /// Free thousandths of the device that supplies the share.
    pub(crate) level: u16,
    /// Whether the next item of the table belongs to another task or state.
    last: bool,
}

/// Cached assignments of a task on a state, in eight bytes. Most states have one assignment, which is stored inline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownAssignment {
    /// Cost of the single assignment, or the table position of the first of several.
    number: u32,
    /// Level of the single assignment.
    level: u16,
    /// Slot loss of the single assignment, or [`DOES_NOT_FIT`], or [`SEVERAL`].
    loss: u16,
}

/// Cached assignments of one task, by state.
pub(crate) type KnownAssignments = IntMap<u32, KnownAssignment>;

/// The task does not fit on the state.
const DOES_NOT_FIT: u16 = u16::MAX;
/// The state has several assignments, or one whose slot loss has a larger id.
const SEVERAL: u16 = u16::MAX - 1;

/// The inputs of the cost formula, and the costs computed so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    rollouts: Vec<Rollouts>,
    pub(crate) scarcity: Scarcity,
    pub(crate) gangs: Gangs,
    /// State values; [`UNKNOWN_VALUE`] where not computed yet.
    values: Vec<i64>,
    /// Interned slot counts: of nodes, and lost by assignments.
    pub(crate) slots: Interner<SlotCounts>,
    /// Assignments of (task, state) pairs that have several.
    assignments: Vec<LevelCost>,
    scratch: Vec<u16>,
}

impl Costs {
    pub(crate) fn new(mix: &Mix, shapes: &[Shape], totals: &[ShapeTotal]) -> Self {
        let known_tasks = mix.known_tasks();
        let mix = mix.runnable_on(shapes);
        let refusals = Refusals::of(&mix, totals, known_tasks);
        let rollouts = split_demand(&mix, totals).into_iter().map(|weights| {
            let types: Vec<(&Task, u64)> = mix.iter().zip(weights).map(|(of, weight)| (of.task, weight)).collect();
            Rollouts::draw(&types, &refusals)
        });
        Self {
            rollouts: rollouts.collect(),
            scarcity: Scarcity::of(&mix),
            gangs: Gangs::of(&mix, shapes, totals, known_tasks),
            ..Self::default()
        }
    }

    /// Thousandths of devices that stay idle on `state` in the end, summed over the rollouts. Cached.
    fn value(&mut self, states: &States, state: u32) -> i64 {
        let at = state as usize;
        if self.values.len() <= at {
            self.values.resize(states.len().max(at + 1), UNKNOWN_VALUE);
        }
        if self.values[at] == UNKNOWN_VALUE {
            let (shape, free) = states.get(state);
            self.values[at] = self.rollouts[*shape as usize].idle_after(free, &mut self.scratch);
        }
        self.values[at]
    }

    /// Whether the cache is full: the caller then replaces these costs.
    pub(crate) fn is_overgrown(&self) -> bool {
        self.assignments.len() > MAX_ASSIGNMENTS
    }

    /// Calls `each` for every assignment of `task` to `state`. `cached` is an earlier lookup of `state` in `known`.
    pub(crate) fn assignments(
        &mut self,
        states: &mut States,
        task: &Task,
        known: &mut KnownAssignments,
        state: u32,
        cached: Option<KnownAssignment>,
        mut each: impl FnMut(LevelCost),
    ) {
        // The same state can occur twice in a batch, so it may be known by now.
        let cached = cached.or_else(|| known.get(state));
        let KnownAssignment { number, level, loss } = cached.unwrap_or_else(|| {
            let found = self.compute_assignments(states, task, state);
            known.insert(state, found);
            found
        });
        match loss {
            DOES_NOT_FIT => {}
            SEVERAL => {
                for assignment in &self.assignments[number as usize..] {
                    each(*assignment);
                    if assignment.last {
                        break;
                    }
                }
            }
            loss => each(LevelCost { cost: number.cast_signed(), loss: u32::from(loss), level, last: true }),
        }
    }

    fn compute_assignments(&mut self, states: &mut States, task: &Task, state: u32) -> KnownAssignment {
        let begin = self.assignments.len();
        let (shape, free) = states.get(state);
        let shape = *shape;
        if free.fits(task) {
            let free = free.clone();
            let (before, slots) = (self.value(states, state), self.gangs.slots(shape, &free));
            let shares = (task.devices == 1).then(|| free.levels(task.milli));
            for level in shares.into_iter().flatten().chain((task.devices != 1).then_some(0)) {
                let Some(next) = free.after(task, level) else { continue };
                let left = leftover(&next);
                let mut lost = slots;
                for (lost, kept) in lost.iter_mut().zip(self.gangs.slots(shape, &next)) {
                    *lost -= kept;
                }
                let after = states.intern((shape, next));
                let cost = self.value(states, after) - before + left;
                let cost = i32::try_from(cost).unwrap_or(if cost < 0 { i32::MIN } else { i32::MAX });
                self.assignments.push(LevelCost { cost, loss: self.slots.intern(lost), level, last: false });
            }
        }
        let known = match &mut self.assignments[begin..] {
            [] => KnownAssignment { loss: DOES_NOT_FIT, ..KnownAssignment::default() },
            [LevelCost { cost, loss, level, .. }] if *loss < u32::from(SEVERAL) => {
                let loss = u16::try_from(*loss).unwrap_or(SEVERAL);
                KnownAssignment { number: cost.cast_unsigned(), level: *level, loss }
            }
            [.., last] => {
                last.last = true;
                KnownAssignment { number: u32::try_from(begin).unwrap_or(u32::MAX), level: 0, loss: SEVERAL }
            }
        };
        if known.loss != SEVERAL {
            self.assignments.truncate(begin);
        }
        known
    }

    /// Id of the slot counts of a node of `shape` in `state`.
    pub(crate) fn slots_of(&mut self, shape: u32, state: &NodeState) -> u32 {
        self.slots.intern(self.gangs.slots(shape, state))
    }

    /// Current price of one slot of each gang class.
    pub(crate) fn slot_prices(&self, free_milli: u64, left: &[i64; GANG_CLASSES]) -> [i64; GANG_CLASSES] {
        self.gangs.prices(free_milli, left, SLOT_WEIGHT * ROLLOUTS as i64)
    }
}

/// The weighted capacity left on a node.
fn leftover(state: &NodeState) -> i64 {
    let weight = LEFTOVER_WEIGHT * ROLLOUTS as u64 / 2;
    let left =
        weight * state.cpu_milli / LARGE_NODE_CPU_MILLI + weight * state.device_milli() / LARGE_NODE_DEVICE_MILLI;
    i64::try_from(left).unwrap_or(i64::MAX)
}
