//! In which order groups came to have nodes: what rankings take in when they are asked.

use crate::scheduler::packing::node_state::NodeState;
use crate::scheduler::packing::task::{Task, WHOLE};

/// A group that came to have a node, with enough of its state to pass over it where a task does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Nodes of one donor in one state.
    pub(crate) group: u32,
    pub(crate) state: u32,
    pub(crate) donor: u32,
    pub(crate) shape: u32,
    /// Digest of the state: equal costs are told apart by it.
    pub(crate) tie: u32,
    cpu_milli: u32,
    memory_mib: u32,
    /// Free thousandths of the device that has most.
    most: u16,
    /// Whole devices.
    whole: u16,
    /// Whether it has a node still.
    live: bool,
}

impl Entry {
    pub(crate) fn new((group, state): (u32, u32), (donor, shape): (u32, u32), free: &NodeState, digest: u64) -> Self {
        Self {
            group,
            state,
            donor,
            shape,
            tie: u32::try_from(digest >> 32).unwrap_or(u32::MAX),
            cpu_milli: u32::try_from(free.cpu_milli).unwrap_or(u32::MAX),
            memory_mib: u32::try_from(free.memory_mib).unwrap_or(u32::MAX),
            most: free.devices.last().copied().unwrap_or(0),
            whole: u16::try_from(free.whole_devices()).unwrap_or(u16::MAX),
            live: true,
        }
    }

    /// Whether it has a node, on which `task` may fit; amounts of 2^32 and more are not told apart.
    pub(crate) fn may_fit(&self, task: &Task) -> bool {
        self.live
            && u64::from(self.cpu_milli) >= task.cpu_milli.min(u64::from(u32::MAX))
            && u64::from(self.memory_mib) >= task.memory_mib.min(u64::from(u32::MAX))
            && self.most >= task.milli
            && (task.milli < WHOLE || self.whole >= task.devices)
    }
}

/// The log: what is past is taken out once it is most of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: Vec<Entry>,
    live: usize,
}

impl Log {
    /// Adds an entry; its place.
    pub(crate) fn push(&mut self, entry: Entry) -> u32 {
        self.live += 1;
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
    }

    /// The group of the entry at `place` has no node any more.
    pub(crate) fn end(&mut self, place: u32) {
        self.entries[place as usize].live = false;
        self.live -= 1;
    }

    /// Entries from `place` on.
    pub(crate) fn since(&self, place: usize) -> &[Entry] {
        &self.entries[place..]
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes out what is past if that is most of it. `moved` is told each group whose entry has another place then; what
    /// is returned is, for each place before, how many of the entries ahead of it are left.
    pub(crate) fn shorten(&mut self, mut moved: impl FnMut(u32, u32)) -> Option<Vec<u32>> {
        if self.entries.len() <= 4 * self.live + 64 {
            return None;
        }
        let (mut left, mut ahead) = (0_u32, Vec::with_capacity(self.entries.len() + 1));
        self.entries.retain(|entry| {
            ahead.push(left);
            if entry.live {
                moved(entry.group, left);
                left += 1;
            }
            entry.live
        });
        ahead.push(left);
        Some(ahead)
    }
}
