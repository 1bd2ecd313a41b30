//! What pods hold of their lease: CPU, memory and shares of devices.

use std::collections::BTreeMap;

use comity_agent_delivery::DonorLease;
use serde::{Deserialize, Serialize};

use crate::pod_plan::PodPlan;

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

    /// What a pod gets of `free`. One of its containers runs at a time, so the pod holds the largest amount of each resource;
    /// a container that states none may use all that is free.
    ///
    /// # Errors
    /// A sentence as of Kubernetes' quota: requested, used and limited.
    pub(crate) fn of_pod(plan: &PodPlan, all: &Self, free: &Self, resource: &str) -> Result<Self, String> {
        let most = |stated: fn(&crate::pod_plan::ContainerPlan) -> Option<u64>, left: u64| {
            plan.containers().map(|container| stated(container).unwrap_or(left)).max().unwrap_or(left)
        };
        let cpu_milli = most(|container| container.cpu_milli, free.cpu_milli);
        let memory_mib = most(|container| container.memory_mib, free.memory_mib);
        let units = plan.containers().map(|container| container.units).max().unwrap_or_default();
        let exceeded = |name: &str, wanted: u64, all: u64, free: u64, unit: &str| {
            let used = all - free.min(all);
            format!(
                "exceeded quota: gpus, requested: {name}={wanted}{unit}, used: {name}={used}{unit}, limited: \
                 {name}={all}{unit}"
            )
        };
        if cpu_milli > free.cpu_milli || cpu_milli == 0 {
            return Err(exceeded("limits.cpu", cpu_milli, all.cpu_milli, free.cpu_milli, "m"));
        }
        if memory_mib > free.memory_mib || memory_mib == 0 {
            return Err(exceeded("limits.memory", memory_mib, all.memory_mib, free.memory_mib, "Mi"));
        }
        if units > free.units() {
            return Err(exceeded(&format!("requests.{resource}"), units, all.units(), free.units(), ""));
        }
        let mut wanted = units;
        let mut devices = BTreeMap::new();
        for (device, left) in &free.devices {
            let taken = u32::try_from(wanted).unwrap_or(u32::MAX).min(*left);
            if taken > 0 {
                devices.insert(*device, taken);
                wanted -= u64::from(taken);
            }
        }
        Ok(Self { cpu_milli, memory_mib, devices })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(limits: &serde_json::Value) -> PodPlan {
        let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
        PodPlan::read(&json!({"spec": {"containers": [container]}}), "nvidia.com/gpu").unwrap()
    }

    #[test]
    fn pods_of_a_lease_share_it_and_no_more() {
        let all = Held { cpu_milli: 4_000, memory_mib: 8_192, devices: BTreeMap::from([(1, 1), (3, 1)]) };
        let stated = plan(&json!({"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": 1}));
        let first = Held::of_pod(&stated, &all, &all, "nvidia.com/gpu").unwrap();
        assert_eq!(first, Held { cpu_milli: 1_000, memory_mib: 2_048, devices: BTreeMap::from([(1, 1)]) });
        let free = all.clone().without([&first]);
        let rest = Held::of_pod(&plan(&json!({"nvidia.com/gpu": 1})), &all, &free, "nvidia.com/gpu").unwrap();
        assert_eq!(rest, Held { cpu_milli: 3_000, memory_mib: 6_144, devices: BTreeMap::from([(3, 1)]) });
        let free = free.without([&rest]);
        let error = Held::of_pod(&stated, &all, &free, "nvidia.com/gpu").unwrap_err();
        assert!(error.contains("requested: limits.cpu=1000m, used: limits.cpu=4000m, limited: limits.cpu=4000m"));
        let two = plan(&json!({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 3}));
        let error = Held::of_pod(&two, &all, &all, "nvidia.com/gpu").unwrap_err();
        assert!(error.contains("requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=0"), "{error}");
    }
}
