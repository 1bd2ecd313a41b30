//! NUMA nodes of Kubernetes nodes, from NodeResourceTopology objects (`topology.node.k8s.io/v1alpha2`).
//!
//! Node agents such as NFD's topology updater write them; most clusters have none. A node's annotation
//! [`comity.dev/wiring`](super::wiring::WIRING_ANNOTATION) takes precedence. Source:
//! k8stopologyawareschedwg/noderesourcetopology-api, pkg/apis/topology/v1alpha2.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::pod_request::{CPU, MEMORY};
use comity_policy::quantity;
use comity_proto::v1::{Device, NumaAmounts, sharing};
use serde::Deserialize;
use serde_json::Value;

use super::MIB;
use super::wiring::MAX_NUMA_NODES;

/// Longest list of resources of one NUMA node that is read.
const MAX_NUMA_RESOURCES: usize = 256;

/// Attribute with the policy of the kubelet's topology manager. Objects of older agents have `topologyPolicies` instead,
/// whose names also say the scope, as in "SingleNUMANodePodLevel".
const POLICY_ATTRIBUTE: &str = "topologyManagerPolicy";

/// NUMA nodes of a node, in order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTopology {
    zones: Vec<Zone>,
    /// Whether the kubelet refuses containers that it cannot align.
    is_strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Zone {
    number: u32,
    cpu_milli: u64,
    /// `None` where the kubelet has no static memory manager: it then binds no memory to a NUMA node.
    memory_mib: Option<u64>,
    /// Other resources that pods can have, by name.
    devices: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct ZoneRead {
    #[serde(default)]
    name: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceRead>,
}

#[derive(Deserialize)]
struct AttributeRead {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct ResourceRead {
    name: String,
    /// A quantity: text, or a bare number.
    allocatable: Value,
}

impl NodeTopology {
    /// Reads an object; `None` if it names no NUMA nodes or is invalid.
    pub(crate) fn read(object: &Value) -> Option<Self> {
        let read = Vec::<ZoneRead>::deserialize(&object["zones"]).ok()?;
        let mut zones: Vec<Zone> =
            read.into_iter().filter(|zone| zone.kind == "Node").map(zone).collect::<Option<_>>()?;
        zones.sort_by_key(|zone| zone.number);
        let numbers: BTreeSet<u32> = zones.iter().map(|zone| zone.number).collect();
        let is_whole = !zones.is_empty() && zones.len() <= MAX_NUMA_NODES && numbers.len() == zones.len();
        is_whole.then_some(Self { zones, is_strict: is_strict(object) })
    }

    /// Whether the kubelet gives each container CPU and memory of the NUMA nodes of its devices. Besides the topology
    /// manager's policy it needs the static policies of the CPU and memory managers: without them, no NUMA node tells
    /// its CPU or memory.
    pub(crate) fn enforces_numa(&self) -> bool {
        let all_bound = self.zones.iter().all(|zone| zone.memory_mib.is_some());
        self.is_strict && all_bound && self.zones.iter().any(|zone| zone.cpu_milli > 0)
    }

    /// Sets each device's NUMA node as far as the counts allow, and returns the amounts that pods can have of each NUMA
    /// node. They are scaled down so that their sum is at most the node's `cpu_milli` and `memory_mib`. If no NUMA node
    /// tells its memory, each has an equal part.
    pub(crate) fn apply(&self, devices: &mut [Device], cpu_milli: u64, memory_mib: u64) -> Vec<NumaAmounts> {
        let mut left: Vec<BTreeMap<&str, u64>> = self
            .zones
            .iter()
            .map(|zone| zone.devices.iter().map(|(name, count)| (name.as_str(), *count)).collect())
            .collect();
        for device in devices {
            let units = units(device);
            let zone = left.iter_mut().position(|zone| {
                let count = zone.get_mut(device.resource_name.as_str()).filter(|count| units > 0 && **count >= units);
                count.map(|count| *count -= units).is_some()
            });
            device.numa_node = zone.and_then(|index| self.zones.get(index)).map(|zone| zone.number);
        }
        let all = |of: fn(&Zone) -> u64| self.zones.iter().map(of).fold(0_u64, u64::saturating_add);
        let (all_cpu, all_memory) = (all(|zone| zone.cpu_milli), all(|zone| zone.memory_mib.unwrap_or(0)));
        let tells_memory = self.zones.iter().any(|zone| zone.memory_mib.is_some());
        let equal_part = memory_mib / (self.zones.len() as u64).max(1);
        let amounts = |zone: &Zone| NumaAmounts {
            numa_node: zone.number,
            cpu_milli: share(zone.cpu_milli, all_cpu, cpu_milli),
            memory_mib: match zone.memory_mib {
                None if !tells_memory => equal_part,
                memory => share(memory.unwrap_or(0), all_memory, memory_mib),
            },
        };
        self.zones.iter().map(amounts).collect()
    }
}

/// Whether the policy is "single-numa-node" or "restricted".
fn is_strict(object: &Value) -> bool {
    let attributes = Vec::<AttributeRead>::deserialize(&object["attributes"]).unwrap_or_default();
    let policy = attributes.iter().find(|attribute| attribute.name == POLICY_ATTRIBUTE);
    if let Some(policy) = policy {
        return ["single-numa-node", "restricted"].contains(&policy.value.as_str());
    }
    let policies = Vec::<String>::deserialize(&object["topologyPolicies"]).unwrap_or_default();
    let is_strict = |policy: &String| policy.starts_with("SingleNUMANode") || policy.starts_with("Restricted");
    !policies.is_empty() && policies.iter().all(is_strict)
}

/// `part`, scaled down by `limit / all` if `all` exceeds `limit`; rounded down.
fn share(part: u64, all: u64, limit: u64) -> u64 {
    if all <= limit {
        return part;
    }
    u64::try_from(u128::from(part) * u128::from(limit) / u128::from(all)).unwrap_or(part)
}

/// Units of its resource that a device has; 0 if fractional.
fn units(device: &Device) -> u64 {
    match device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref()) {
        None | Some(sharing::Mode::Exclusive(_)) => 1,
        Some(sharing::Mode::TimeSlicing(slices)) => u64::from(slices.replicas),
        Some(sharing::Mode::Mps(mps)) => u64::from(mps.shares),
        Some(sharing::Mode::Mig(mig)) => mig.instances.iter().map(|instances| u64::from(instances.count)).sum(),
        Some(sharing::Mode::Fractional(_)) => 0,
    }
}

/// "node-0" is the NUMA node 0.
fn zone(read: ZoneRead) -> Option<Zone> {
    let number = read.name.strip_prefix("node-")?.parse().ok()?;
    let mut zone = Zone { number, ..Zone::default() };
    for resource in read.resources.into_iter().take(MAX_NUMA_RESOURCES) {
        let text = match &resource.allocatable {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match resource.name.as_str() {
            CPU => zone.cpu_milli = quantity::milli_floor(&text)?,
            MEMORY => zone.memory_mib = Some(quantity::ones_floor(&text)? / MIB),
            _ => drop(zone.devices.insert(resource.name, quantity::ones_floor(&text)?)),
        }
    }
    Some(zone)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    /// As NFD's topology updater writes it, of a box with two sockets and GPUs beside each.
    fn object(gpus: [u32; 2]) -> Value {
        let zone = |number: usize, gpus: u32| {
            json!({
                "name": format!("node-{number}"), "type": "Node",
                "costs": [{ "name": "node-0", "value": 10 }, { "name": "node-1", "value": 21 }],
                "resources": [
                    { "name": "cpu", "capacity": "56", "allocatable": "54", "available": "10" },
                    { "name": "memory", "capacity": "1000Gi", "allocatable": "1000Gi", "available": "5Gi" },
                    { "name": "nvidia.com/gpu", "capacity": gpus, "allocatable": gpus, "available": 0 },
                ],
            })
        };
        json!({
            "attributes": [{ "name": "topologyManagerPolicy", "value": "single-numa-node" }],
            "zones": [zone(1, gpus[1]), zone(0, gpus[0]), { "name": "l3-0", "type": "Cache" }],
        })
    }

    fn without(object: &mut Value, zone: usize, name: &str) {
        object["zones"][zone]["resources"].as_array_mut().unwrap().retain(|resource| resource["name"] != name);
    }

    fn devices(count: usize) -> Vec<Device> {
        vec![Device { resource_name: "nvidia.com/gpu".to_owned(), ..Device::default() }; count]
    }

    fn places(devices: &[Device]) -> Vec<Option<u32>> {
        devices.iter().map(|device| device.numa_node).collect()
    }

    #[test]
    fn each_numa_node_has_its_cpu_its_memory_and_its_gpus() {
        let topology = NodeTopology::read(&object([2, 1])).unwrap();
        let mut gpus = devices(4);
        let numa = topology.apply(&mut gpus, 112_000, 2_048 << 10);
        assert_eq!(numa[1], NumaAmounts { numa_node: 1, cpu_milli: 54_000, memory_mib: 1_000 << 10 });
        assert_eq!(places(&gpus), [Some(0), Some(0), Some(1), None], "where the fourth is nobody says");
    }

    #[test]
    fn the_nodes_own_reserve_is_taken_from_all_alike() {
        let topology = NodeTopology::read(&object([4, 4])).unwrap();
        let numa = topology.apply(&mut devices(8), 100_001, 1_900 << 10);
        assert_eq!(numa.iter().map(|zone| zone.memory_mib).collect::<Vec<_>>(), [950 << 10; 2]);
        assert!(numa.iter().map(|zone| zone.cpu_milli).sum::<u64>() <= 100_001);
    }

    #[test]
    fn a_shared_device_is_counted_once_for_each_of_its_replicas() {
        let topology = NodeTopology::read(&object([4, 4])).unwrap();
        let mut gpus = devices(4);
        for gpu in &mut gpus {
            let slices = sharing::TimeSlicing { replicas: 2 };
            gpu.sharing = Some(comity_proto::v1::Sharing { mode: Some(sharing::Mode::TimeSlicing(slices)) });
        }
        topology.apply(&mut gpus, 112_000, 2_048 << 10);
        assert_eq!(places(&gpus), [Some(0), Some(0), Some(1), Some(1)]);
    }

    /// The updater writes no memory for a kubelet without a static memory manager, and no CPU where all are reserved.
    #[test]
    fn memory_that_nobody_binds_is_divided_equally() {
        let mut object = object([1, 1]);
        without(&mut object, 0, "memory");
        without(&mut object, 1, "memory");
        without(&mut object, 0, "cpu");
        let numa = NodeTopology::read(&object).unwrap().apply(&mut devices(2), 112_000, 2_048 << 10);
        assert_eq!(numa.iter().map(|zone| zone.memory_mib).collect::<Vec<_>>(), [1_024 << 10; 2]);
        assert_eq!(numa.iter().map(|zone| zone.cpu_milli).collect::<Vec<_>>(), [54_000, 0]);
    }

    #[test]
    fn an_unreadable_topology_is_ignored() {
        let mut twice = object([4, 4]);
        twice["zones"][0]["name"] = json!("node-0");
        let mut wrong = object([4, 4]);
        wrong["zones"][0]["resources"][0]["allocatable"] = json!("many");
        let others = [json!([]), json!("zones"), json!([{ "type": "Node", "name": "socket-a" }])];
        for object in others.map(|zones| json!({ "zones": zones })).into_iter().chain([twice, wrong, json!({})]) {
            assert_eq!(NodeTopology::read(&object), None, "{object}");
        }
    }

    #[test]
    fn numa_is_enforced_by_a_strict_policy_that_binds_cpu_and_memory() {
        let enforces = |change: &dyn Fn(&mut Value)| {
            let mut object = object([4, 4]);
            change(&mut object);
            NodeTopology::read(&object).unwrap().enforces_numa()
        };
        assert!(enforces(&|_| {}));
        for (policy, expected) in [("restricted", true), ("best-effort", false), ("none", false)] {
            assert_eq!(enforces(&|object| object["attributes"][0]["value"] = json!(policy)), expected, "{policy}");
        }
        for (policies, expected) in [
            (json!(["SingleNUMANodePodLevel"]), true),
            (json!(["RestrictedContainerLevel"]), true),
            (json!(["BestEffort"]), false),
            (json!([]), false),
        ] {
            let old = |object: &mut Value| {
                object["attributes"] = json!(null);
                object["topologyPolicies"] = policies.clone();
            };
            assert_eq!(enforces(&old), expected, "{policies}");
        }
        assert!(!enforces(&|object| without(object, 1, "memory")), "no static memory manager");
        let no_cpu = |object: &mut Value| (0..2).for_each(|zone| without(object, zone, "cpu"));
        assert!(!enforces(&no_cpu), "no static CPU manager");
    }
}
