//! What tasks cost on states, remembered.

use crate::collections::int_map::IntMap;
use crate::collections::interner::Interner;
use crate::scheduler::packing::gang_slots::{Gangs, SORTS, Slots};
use crate::scheduler::packing::mix::Mix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::{ShapeTotal, deal};
use crate::scheduler::packing::refusals::Refusals;
use crate::scheduler::packing::rollout::{ROLLOUTS, Rollouts};
use crate::scheduler::packing::scarcity::Scarcity;
use crate::scheduler::packing::task::Task;

/// Weight of what a node is left with: it decides between states that are worth the same.
const LEFTOVER_WEIGHT: u64 = 30;
/// CPU that counts as much as all devices of [`LARGE_NODE_DEVICE_MILLI`], in thousandths of a core.
const LARGE_NODE_CPU_MILLI: u64 = 128_000;
/// Devices of a large node in thousandths.
const LARGE_NODE_DEVICE_MILLI: u64 = 8_000;
/// Price of a slot that is sure to be asked for, in thousandths of a device for each device of it.
const SLOT_WEIGHT: i64 = 100;

/// States by number, with their shape.
pub(crate) type States = Interner<(u32, NodeState)>;

/// Assignments that are remembered of states that have several for a task: 16 bytes each.
const MAX_ASSIGNMENTS: usize = 1 << 22;
/// No value is known of a state.
const UNKNOWN: i64 = i64::MIN;

/// One way to put a task on a state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelCost {
    /// What it costs, without prices.
    pub(crate) cost: i32,
    /// Number of the slots that it takes away.
    pub(crate) loss: u32,
    /// Free thousandths of the device that a share comes from.
    pub(crate) level: u16,
    /// Whether the next one in the table is of another task or state.
    last: bool,
}

/// What is remembered of a task on a state, in eight bytes: most have one assignment, which needs no second look then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Cost of the one assignment, or where several begin.
    number: u32,
    /// Of the one assignment.
    level: u16,
    /// Of the one assignment, or [`NO_ASSIGNMENT`], or [`SEVERAL`].
    loss: u16,
}

/// What is remembered of a task, by state.
pub(crate) type KnownOfTask = IntMap<u32, Known>;

/// The task does not fit on the state.
const NO_ASSIGNMENT: u16 = u16::MAX;
/// There are several assignments, or one that takes slots of a larger number.
const SEVERAL: u16 = u16::MAX - 1;

/// What costs are computed from, and those that are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    rollouts: Vec<Rollouts>,
    pub(crate) scarcity: Scarcity,
    pub(crate) gangs: Gangs,
    /// By state.
    values: Vec<i64>,
    /// Slots that nodes have, and that assignments take away.
    pub(crate) slots: Interner<Slots>,
    /// Assignments of pairs of a task and a state that have several.
    assignments: Vec<LevelCost>,
    scratch: Vec<u16>,
}

impl Costs {
    pub(crate) fn new(mix: &Mix, shapes: &[Shape], totals: &[ShapeTotal]) -> Self {
        let known_tasks = mix.known_tasks();
        let mix = mix.over(shapes);
        let refusals = Refusals::of(&mix, totals, known_tasks);
        let rollouts = deal(&mix, totals).into_iter().map(|weights| {
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

    /// Thousandths of devices that stay idle on `state` in the end, summed over the rollouts.
    fn value(&mut self, states: &States, state: u32) -> i64 {
        let at = state as usize;
        if self.values.len() <= at {
            self.values.resize(states.len().max(at + 1), UNKNOWN);
        }
        if self.values[at] == UNKNOWN {
            let (shape, free) = states.get(state);
            self.values[at] = self.rollouts[*shape as usize].idle_after(free, &mut self.scratch);
        }
        self.values[at]
    }

    /// Whether too many assignments are remembered: with new costs, all are forgotten.
    pub(crate) fn is_overgrown(&self) -> bool {
        self.assignments.len() > MAX_ASSIGNMENTS
    }

    /// All assignments to put `task` on `state`; with it comes what was remembered of it, among what is `known` of the task.
    pub(crate) fn assignments(
        &mut self,
        states: &mut States,
        (task, known): (&Task, &mut KnownOfTask),
        (state, before): (u32, Option<Known>),
        mut each: impl FnMut(LevelCost),
    ) {
        // Since it was looked up, it may have become known: the same state can come twice.
        let before = before.or_else(|| known.get(state));
        let Known { number, level, loss } = before.unwrap_or_else(|| {
            let found = self.find_assignments(states, task, state);
            known.insert(state, found);
            found
        });
        match loss {
            NO_ASSIGNMENT => {}
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

    /// Computes the assignments to put a task on a state.
    fn find_assignments(&mut self, states: &mut States, task: &Task, state: u32) -> Known {
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
            [] => Known { loss: NO_ASSIGNMENT, ..Known::default() },
            [LevelCost { cost, loss, level, .. }] if *loss < u32::from(SEVERAL) => {
                let loss = u16::try_from(*loss).unwrap_or(SEVERAL);
                Known { number: cost.cast_unsigned(), level: *level, loss }
            }
            [.., last] => {
                last.last = true;
                Known { number: u32::try_from(begin).unwrap_or(u32::MAX), level: 0, loss: SEVERAL }
            }
        };
        if known.loss != SEVERAL {
            self.assignments.truncate(begin);
        }
        known
    }

    /// Number of the slots of a node of `shape` in `state`.
    pub(crate) fn slots_of(&mut self, shape: u32, state: &NodeState) -> u32 {
        self.slots.intern(self.gangs.slots(shape, state))
    }

    /// Prices of slots now.
    pub(crate) fn slot_prices(&self, free_milli: u64, left: &[i64; SORTS]) -> [i64; SORTS] {
        self.gangs.prices(free_milli, left, SLOT_WEIGHT * ROLLOUTS as i64)
    }
}

/// What a node is left with, weighed.
fn leftover(state: &NodeState) -> i64 {
    let weight = LEFTOVER_WEIGHT * ROLLOUTS as u64 / 2;
    let left =
        weight * state.cpu_milli / LARGE_NODE_CPU_MILLI + weight * state.device_milli() / LARGE_NODE_DEVICE_MILLI;
    i64::try_from(left).unwrap_or(i64::MAX)
}
