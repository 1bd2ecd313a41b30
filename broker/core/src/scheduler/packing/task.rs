//! The amounts that one task takes of one node.

use crate::collections::interner::{Digest, digest_of};

/// The amounts that one task takes of one node. Equal tasks form one task type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Number of devices; zero for a CPU-only task.
    pub devices: u16,
    /// Thousandths of each device; less than 1000 only where `devices` is 1.
    pub milli: u16,
    /// Device kinds that can serve it, ascending; empty means any.
    pub kinds: Vec<u32>,
}

impl Digest for Task {
    fn digest(&self) -> u64 {
        let amounts = [self.cpu_milli, self.memory_mib, u64::from(self.devices), u64::from(self.milli)];
        digest_of(amounts.into_iter().chain(self.kinds.iter().map(|&kind| u64::from(kind))))
    }
}

impl Task {
    /// Sum of thousandths over its devices.
    #[must_use]
    pub fn device_milli(&self) -> u64 {
        u64::from(self.devices) * u64::from(self.milli)
    }

    /// Whether it takes only part of a device.
    #[must_use]
    pub fn is_share(&self) -> bool {
        self.devices == 1 && self.milli < WHOLE
    }

    /// Whether devices of `kind` can serve it.
    #[must_use]
    pub fn takes(&self, kind: u32) -> bool {
        self.devices == 0 || self.kinds.is_empty() || self.kinds.binary_search(&kind).is_ok()
    }
}

/// A whole device in thousandths.
pub(crate) const WHOLE: u16 = 1_000;
