//! The value of a node state: capacity that would stay idle on it in the end if the expected work came.

use crate::scheduler::packing::node_state::NodeState;
use crate::scheduler::packing::refusals::Refusals;
use crate::scheduler::packing::task::{Task, WHOLE};

/// Rollouts played on each state.
pub(crate) const ROLLOUTS: usize = 64;
/// Tasks offered in each rollout.
const TASKS_PER_ROLLOUT: usize = 30;

/// The rollouts of one node shape. All states of a shape share them, so that chance does not separate states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollouts {
    tasks: Vec<RolloutTask>,
    /// Whether refusing any of the tasks costs nothing: then a rollout ends once nothing more fits.
    free_to_refuse: bool,
    /// No task fits with less CPU or memory.
    least_cpu_milli: u32,
    least_memory_mib: u32,
}

/// A task of a rollout, compact so that the rollouts of a shape fit in the first-level cache. Amounts saturate.
#[derive(Clone, Copy, Debug)]
struct RolloutTask {
    cpu_milli: u32,
    memory_mib: u32,
    /// Cost of refusing it in thousandths of a device: zero if it takes devices, which then stay idle.
    refusal: u32,
    devices: u16,
    milli: u16,
}

impl Rollouts {
    /// Draws rollouts from weighted types: evenly over the cumulative weights, then shuffled with a fixed seed.
    pub(crate) fn draw(types: &[(&Task, u64)], refusals: &Refusals) -> Self {
        let total: u128 = types.iter().map(|(_, weight)| u128::from(*weight)).sum();
        if total == 0 {
            return Self::default();
        }
        let draws = ROLLOUTS * TASKS_PER_ROLLOUT;
        let (mut tasks, mut index, mut below) = (Vec::with_capacity(draws), 0, u128::from(types[0].1));
        for draw in 0..draws as u128 {
            let at = (2 * draw + 1) * total / (2 * draws as u128);
            while at >= below && index + 1 < types.len() {
                index += 1;
                below += u128::from(types[index].1);
            }
            let task = types[index].0;
            tasks.push(RolloutTask {
                cpu_milli: saturating_u32(task.cpu_milli),
                memory_mib: saturating_u32(task.memory_mib),
                refusal: saturating_u32(refusals.milli(task)),
                devices: task.devices,
                milli: task.milli,
            });
        }
        shuffle(&mut tasks);
        Self {
            free_to_refuse: tasks.iter().all(|task| task.refusal == 0),
            least_cpu_milli: tasks.iter().map(|task| task.cpu_milli).min().unwrap_or(0),
            least_memory_mib: tasks.iter().map(|task| task.memory_mib).min().unwrap_or(0),
            tasks,
        }
    }

    /// Idle thousandths of devices plus the cost of refused CPU-only work, summed over all rollouts.
    pub(crate) fn idle_after(&self, state: &NodeState, scratch: &mut Vec<u16>) -> i64 {
        if self.tasks.is_empty() {
            return i64::try_from(state.device_milli() * ROLLOUTS as u64).unwrap_or(i64::MAX);
        }
        self.tasks.chunks(TASKS_PER_ROLLOUT).map(|rollout| self.idle_in(rollout, state, scratch)).sum()
    }

    /// Plays one rollout: skips tasks that do not fit; puts a share on the fullest device with room.
    fn idle_in(&self, rollout: &[RolloutTask], state: &NodeState, free: &mut Vec<u16>) -> i64 {
        free.clear();
        free.extend_from_slice(&state.devices);
        let (mut cpu, mut memory, mut refused) = (saturating_u32(state.cpu_milli), saturating_u32(state.memory_mib), 0);
        for task in rollout {
            if task.cpu_milli > cpu || task.memory_mib > memory {
                refused += i64::from(task.refusal);
                continue;
            }
            match task.devices {
                0 => {}
                1 if task.milli < WHOLE => {
                    let Some(mut at) = free.iter().position(|&free| free >= task.milli) else { continue };
                    let left = free[at] - task.milli;
                    while at > 0 && free[at - 1] > left {
                        free[at] = free[at - 1];
                        at -= 1;
                    }
                    free[at] = left;
                }
                several => {
                    let Some(kept) = free.len().checked_sub(usize::from(several)) else { continue };
                    if free[kept] < WHOLE {
                        continue;
                    }
                    free.truncate(kept);
                }
            }
            cpu -= task.cpu_milli;
            memory -= task.memory_mib;
            let over = cpu < self.least_cpu_milli
                || memory < self.least_memory_mib
                || free.last().is_none_or(|&most| most == 0);
            if over && self.free_to_refuse {
                break;
            }
        }
        refused + free.iter().map(|&milli| i64::from(milli)).sum::<i64>()
    }
}

fn saturating_u32(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// Fisher–Yates with splitmix64 from a fixed seed: every broker plays the same rollouts.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for last in (1..items.len()).rev() {
        let other = usize::try_from(next() % (last as u64 + 1)).unwrap_or(last);
        items.swap(last, other);
    }
}
