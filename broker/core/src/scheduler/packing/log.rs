//! The log of groups in the order in which they gained a node; rankings read it when queried.

use crate::scheduler::packing::node_state::NodeState;
use crate::scheduler::packing::task::{Task, WHOLE};

/// A group that gained a node, with enough of its state to skip it where a task does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry {
    /// Number of a `NodeGroup`: the nodes of one donor in one state.
    pub(crate) group: u32,
    pub(crate) state: u32,
    pub(crate) donor: u32,
    pub(crate) shape: u32,
    /// Upper half of the state's digest: the tie-breaker between equal costs.
    pub(crate) tie: u32,
    cpu_milli: u32,
    memory_mib: u32,
    /// Free thousandths of the device with most free.
    largest_free: u16,
    whole_devices: u16,
    /// Whether the group still has a node.
    live: bool,
}

impl LogEntry {
    pub(crate) fn new(group: u32, state: u32, donor: u32, shape: u32, free: &NodeState, digest: u64) -> Self {
        Self {
            group,
            state,
            donor,
            shape,
            tie: u32::try_from(digest >> 32).unwrap_or(u32::MAX),
            cpu_milli: u32::try_from(free.cpu_milli).unwrap_or(u32::MAX),
            memory_mib: u32::try_from(free.memory_mib).unwrap_or(u32::MAX),
            largest_free: free.devices.last().copied().unwrap_or(0),
            whole_devices: u16::try_from(free.whole_devices()).unwrap_or(u16::MAX),
            live: true,
        }
    }

    /// Whether the group has a node and `task` may fit on it. Amounts saturate at 2^32 − 1, so this may err towards
    /// yes.
    pub(crate) fn may_fit(&self, task: &Task) -> bool {
        self.live
            && u64::from(self.cpu_milli) >= task.cpu_milli.min(u64::from(u32::MAX))
            && u64::from(self.memory_mib) >= task.memory_mib.min(u64::from(u32::MAX))
            && self.largest_free >= task.milli
            && (task.milli < WHOLE || self.whole_devices >= task.devices)
    }
}

/// Compacted once most entries are dead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: Vec<LogEntry>,
    live: usize,
}

impl Log {
    /// Returns the position of the entry.
    pub(crate) fn push(&mut self, entry: LogEntry) -> u32 {
        self.live += 1;
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
    }

    /// Marks the entry at `place`: its group has no node any more.
    pub(crate) fn mark_dead(&mut self, place: u32) {
        self.entries[place as usize].live = false;
        self.live -= 1;
    }

    pub(crate) fn entries_from(&self, place: usize) -> &[LogEntry] {
        &self.entries[place..]
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes dead entries if most are dead. Calls `moved` with each remaining group and its new place. Returns, for
    /// each old place, how many entries before it remain.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(u32, u32)) -> Option<Vec<u32>> {
        if self.entries.len() <= 4 * self.live + 64 {
            return None;
        }
        let (mut kept, mut kept_before) = (0_u32, Vec::with_capacity(self.entries.len() + 1));
        self.entries.retain(|entry| {
            kept_before.push(kept);
            if entry.live {
                moved(entry.group, kept);
                kept += 1;
            }
            entry.live
        });
        kept_before.push(kept);
        Some(kept_before)
    }
}
