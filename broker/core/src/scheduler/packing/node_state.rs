//! Nodes as packing sees them: anonymous free amounts.

use smallvec::{SmallVec, smallvec};

use crate::collections::interner::{Digest, digest_of};
use crate::scheduler::packing::task::{Task, WHOLE};

/// The capacity of an idle node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Devices, all of one kind.
    pub devices: u16,
    /// Kind of its devices: devices of one kind are interchangeable for every request.
    pub kind: u32,
}

/// The free amounts of a node. Nodes of equal shape and state are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeState {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Free thousandths of each device that has any, ascending.
    pub devices: SmallVec<[u16; 8]>,
}

impl Digest for Shape {
    fn digest(&self) -> u64 {
        let rest = [u64::from(self.devices), u64::from(self.kind)];
        digest_of([self.cpu_milli, self.memory_mib].into_iter().chain(rest))
    }
}

/// A shape number with a state.
impl Digest for (u32, NodeState) {
    fn digest(&self) -> u64 {
        self.1.digest_with(u64::from(self.0))
    }
}

impl Shape {
    /// The state of an idle node of this shape.
    #[must_use]
    pub fn idle(&self) -> NodeState {
        NodeState {
            cpu_milli: self.cpu_milli,
            memory_mib: self.memory_mib,
            devices: smallvec![WHOLE; usize::from(self.devices)],
        }
    }

    /// Whether an idle node of this shape could run `task`.
    #[must_use]
    pub fn could_run(&self, task: &Task) -> bool {
        task.cpu_milli <= self.cpu_milli
            && task.memory_mib <= self.memory_mib
            && task.devices <= self.devices
            && task.takes(self.kind)
    }
}

impl NodeState {
    /// `devices` holds the free thousandths of each device, in any order.
    #[must_use]
    pub fn new(cpu_milli: u64, memory_mib: u64, devices: impl Iterator<Item = u16>) -> Self {
        let mut devices: SmallVec<[u16; 8]> = devices.filter(|&milli| milli > 0).collect();
        devices.sort_unstable();
        Self { cpu_milli, memory_mib, devices }
    }

    /// Digest of the state together with `shape`, which identifies its shape.
    pub(crate) fn digest_with(&self, shape: u64) -> u64 {
        let amounts = [shape, self.cpu_milli, self.memory_mib];
        digest_of(amounts.into_iter().chain(self.devices.iter().map(|&milli| u64::from(milli))))
    }

    /// Sum of free thousandths over all devices.
    #[must_use]
    pub fn device_milli(&self) -> u64 {
        self.devices.iter().map(|&milli| u64::from(milli)).sum()
    }

    /// Number of entirely free devices.
    #[must_use]
    pub fn whole_devices(&self) -> usize {
        self.devices.len() - self.devices.partition_point(|&milli| milli < WHOLE)
    }

    /// Whether the free amounts suffice for `task`. The [`Shape`] decides whether the device kind does.
    #[must_use]
    pub fn fits(&self, task: &Task) -> bool {
        self.cpu_milli >= task.cpu_milli
            && self.memory_mib >= task.memory_mib
            && (task.devices == 0 || {
                let enough = self.devices.len() - self.devices.partition_point(|&milli| milli < task.milli);
                enough >= usize::from(task.devices)
            })
    }

    /// The distinct free amounts that can supply a share of `milli`, ascending.
    pub fn levels(&self, milli: u16) -> impl Iterator<Item = u16> {
        let from = self.devices.partition_point(|&free| free < milli);
        let fitting = &self.devices[from..];
        fitting.iter().enumerate().filter(|&(i, level)| i == 0 || fitting[i - 1] != *level).map(|(_, &level)| level)
    }

    /// The state after `task` took its part: a share from a device with `level` free, several devices from those with
    /// most free. `None` if the task does not fit that way.
    #[must_use]
    pub fn after(&self, task: &Task, level: u16) -> Option<Self> {
        let mut next = Self {
            cpu_milli: self.cpu_milli.checked_sub(task.cpu_milli)?,
            memory_mib: self.memory_mib.checked_sub(task.memory_mib)?,
            devices: self.devices.clone(),
        };
        match task.devices {
            0 => {}
            1 => {
                let at = next.devices.binary_search(&level).ok()?;
                let left = level.checked_sub(task.milli)?;
                next.devices.remove(at);
                if left > 0 {
                    let to = next.devices.partition_point(|&free| free < left);
                    next.devices.insert(to, left);
                }
            }
            several => {
                let keep = next.devices.len().checked_sub(usize::from(several))?;
                if next.devices[keep] < task.milli {
                    return None;
                }
                next.devices.truncate(keep);
            }
        }
        Some(next)
    }
}
