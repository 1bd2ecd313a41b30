//! Whether a lease has room for a pod.

use std::collections::BTreeMap;

use crate::held::Held;
use crate::running::pod_plan::{ContainerPlan, PodPlan};

/// What a pod gets of `free`. One of its containers runs at a time, so the pod holds the largest amount of each resource;
/// a container that states none may use all that is free.
///
/// # Errors
/// A sentence as of Kubernetes' quota: requested, used and limited.
pub(crate) fn held_by(plan: &PodPlan, all: &Held, free: &Held, resource: &str) -> Result<Held, String> {
    let most = |stated: fn(&ContainerPlan) -> Option<u64>, left: u64| {
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
    Ok(Held { cpu_milli, memory_mib, devices })
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
        let first = held_by(&stated, &all, &all, "nvidia.com/gpu").unwrap();
        assert_eq!(first, Held { cpu_milli: 1_000, memory_mib: 2_048, devices: BTreeMap::from([(1, 1)]) });
        let free = all.clone().without([&first]);
        let rest = held_by(&plan(&json!({"nvidia.com/gpu": 1})), &all, &free, "nvidia.com/gpu").unwrap();
        assert_eq!(rest, Held { cpu_milli: 3_000, memory_mib: 6_144, devices: BTreeMap::from([(3, 1)]) });
        let free = free.without([&rest]);
        let error = held_by(&stated, &all, &free, "nvidia.com/gpu").unwrap_err();
        assert!(error.contains("requested: limits.cpu=1000m, used: limits.cpu=4000m, limited: limits.cpu=4000m"));
        let two = plan(&json!({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 3}));
        let error = held_by(&two, &all, &all, "nvidia.com/gpu").unwrap_err();
        assert!(error.contains("requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=0"), "{error}");
    }
}
