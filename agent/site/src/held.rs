//! CPU, memory and shares of devices, as a lease has them or a pod holds them.

use std::collections::BTreeMap;

use comity_agent_delivery::DonorLease;
use serde::{Deserialize, Serialize};

/// What a lease has, or a pod holds of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) cpu_milli: u64,
    pub(crate) memory_mib: u64,
    /// Shares by index of the device.
    pub(crate) devices: BTreeMap<u32, u32>,
}

impl Held {
    /// What a lease has on this host.
    pub(crate) fn of_lease(lease: &DonorLease) -> Self {
        let mut all = Self { cpu_milli: lease.cpu_milli(), memory_mib: lease.memory_mib(), devices: BTreeMap::new() };
        for node in &lease.placement.nodes {
            for share in &node.devices {
                let units = all.devices.entry(share.device).or_default();
                *units = units.saturating_add(share.units.max(1));
            }
        }
        all
    }

    /// All shares.
    pub(crate) fn units(&self) -> u64 {
        self.devices.values().copied().map(u64::from).sum()
    }

    /// What is left of it.
    pub(crate) fn without<'a>(mut self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        for other in others {
            self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
            self.memory_mib = self.memory_mib.saturating_sub(other.memory_mib);
            for (device, units) in &other.devices {
                let left = self.devices.entry(*device).or_default();
                *left = left.saturating_sub(*units);
            }
        }
        self
    }
}
