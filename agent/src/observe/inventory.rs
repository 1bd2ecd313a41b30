//! Builds the offered nodes from Kubernetes nodes and pods. Pure: the same facts give the same nodes, byte for byte.
//!
//! Local use is the scheduler's effective request of all unfinished pods that no lease accounts for, including pods
//! being deleted. The API does not tell which device of a device plugin a pod holds, so local use fills a node's
//! devices from the last one down; leases are placed from the first one up. Of devices of a DRA driver it does.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::gpu_resource::NVIDIA_GPU;
use comity_agent_kubernetes::pod_request::{Amounts, CPU, MEMORY};
use comity_proto::v1::{Device, Enforcement, Node, sharing};
use comity_types::LeaseId;

use super::dra_devices::{DraDevices, DraView};
use super::gpu_pool::{self, GpuPool, mig_sharing};
use super::hami::hami_devices;
use super::health::node_xid;
use super::lent_pods::{self, DriftedPod, Guests};
use super::mig_devices;
use super::node_facts::NodeFacts;
use super::not_offered::NotOffered;
use super::pod_facts::PodFacts;
use super::topology::NodeTopology;
use super::wiring::{self, Wiring};
use super::{InventorySettings, LocalReserve, MAX_DEVICES, MAX_NODES, MIB, WHOLE_MILLI, functions, health, node_marks};

/// The inventory at one time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BuiltInventory {
    /// Nodes with devices, by id.
    pub(crate) nodes: Vec<Node>,
    /// Resources that are not offered, by node.
    pub(crate) not_offered: Vec<NotOffered>,
    /// Pods beyond their leases.
    pub(crate) drifted: Vec<DriftedPod>,
    /// Leases that lack their marks on a node.
    pub(crate) unmarked: BTreeSet<LeaseId>,
    /// Leased GPUs that no pod of the lease uses, by lease and node.
    pub(crate) unused: BTreeMap<(LeaseId, String), u64>,
}

/// Builds the inventory. Pods and claims of the leases of `guests` are local use only where they exceed their leases;
/// `topologies` is keyed by node name.
pub(crate) fn build_nodes<'a>(
    nodes: impl IntoIterator<Item = &'a NodeFacts>,
    pods: impl IntoIterator<Item = &'a PodFacts>,
    guests: &Guests,
    topologies: &BTreeMap<String, NodeTopology>,
    dra: &DraDevices,
    settings: &InventorySettings,
) -> BuiltInventory {
    let divided = lent_pods::divide(pods, guests, &settings.salt);
    let mut gpu_pods: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
    for pod in divided.local_pods.iter().filter(|pod| pod.request(NVIDIA_GPU) > 0) {
        gpu_pods.entry(&pod.node).or_default().push(pod);
    }
    let nodes: Vec<&NodeFacts> = nodes.into_iter().collect();
    let dra = DraView::new(dra, &guests.namespaces());
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let mut built = BuiltInventory {
        nodes: Vec::new(),
        not_offered: functions::uncounted(&nodes, &settings.rdma),
        unused: divided.unused(&names, guests, &settings.salt),
        drifted: divided.drifted.clone(),
        unmarked: node_marks::missing(&nodes, &guests.leases, &settings.salt),
    };
    for facts in nodes.into_iter().filter(|facts| !facts.is_virtual) {
        let (claimed, not_offered) = dra.devices(facts, settings.reserve.gpus_per_node);
        built.not_offered.extend(not_offered);
        let local = &divided.local_use(facts, guests, &settings.salt);
        let devices = if claimed.is_empty() {
            let pods = gpu_pods.get(facts.name.as_str()).map_or(&[][..], Vec::as_slice);
            let (mut devices, not_offered) = match &facts.hami {
                Some(hami) => hami_devices::devices(facts, hami, pods, &settings.reserve),
                None => (Vec::new(), Vec::new()),
            };
            built.not_offered.extend(not_offered);
            let held_back = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            let reserve = LocalReserve {
                gpus_per_node: settings.reserve.gpus_per_node.saturating_sub(held_back),
                ..settings.reserve
            };
            let (counted, not_offered) = counted_devices(facts, local, reserve);
            devices.extend(counted);
            built.not_offered.extend(not_offered);
            NodeDevices { devices, enforces: None }
        } else {
            NodeDevices { devices: claimed, enforces: Some(Enforcement { devices: true, numa: false }) }
        };
        if !devices.devices.is_empty() {
            let topology = topologies.get(&facts.name);
            let (node, not_offered) = node(facts, devices, topology, local, settings);
            built.nodes.push(node);
            built.not_offered.extend(not_offered);
        }
    }
    built.nodes.sort_by(|a, b| a.id.cmp(&b.id));
    built.nodes.truncate(MAX_NODES);
    built.not_offered.sort();
    built
}

/// Devices of a node, and whether the donor enforces that pods get those of the placement.
struct NodeDevices {
    devices: Vec<Device>,
    enforces: Option<Enforcement>,
}

/// Devices of device plugins, and resources that cannot be offered: by their layout where the agent knows it, else by number.
fn counted_devices(facts: &NodeFacts, local: &Amounts, reserve: LocalReserve) -> (Vec<Device>, Vec<NotOffered>) {
    let mut unknown = Vec::new();
    if let Some(layouts) = &facts.layouts {
        match mig_devices::of(facts, layouts, local, reserve) {
            Ok(devices) => return (devices, Vec::new()),
            Err(reason) => unknown.push(NotOffered {
                node: facts.name.clone(),
                resource: "layout of MIG devices".to_owned(),
                reason,
            }),
        }
    }
    let (pools, mut not_offered) = gpu_pool::pools(facts);
    not_offered.extend(unknown);
    let mut devices = Vec::new();
    let mut reserved = u64::from(reserve.gpus_per_node);
    for pool in &pools {
        let held_back = reserved.saturating_mul(pool.units_each).min(pool.units);
        reserved = reserved.saturating_sub(held_back.div_ceil(pool.units_each));
        let taken = local.get(&pool.counted_by).copied().unwrap_or(0);
        devices.extend(pool_devices(pool, taken.max(held_back)));
    }
    (devices, not_offered)
}

/// The offered node, and its annotations and resources that cannot be offered.
fn node(
    facts: &NodeFacts,
    NodeDevices { mut devices, enforces }: NodeDevices,
    topology: Option<&NodeTopology>,
    local: &Amounts,
    InventorySettings { salt, reserve, rdma }: &InventorySettings,
) -> (Node, Vec<NotOffered>) {
    let amount = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
    devices.truncate(MAX_DEVICES);
    let published_numa: Vec<Option<u32>> = devices.iter().map(|device| device.numa_node).collect();
    for device in devices.iter_mut().filter(|device| !device.nvlink_clique.is_empty()) {
        device.nvlink_clique = salt.clique_id(&device.nvlink_clique);
    }
    for (index, device) in (0_u32..).zip(&mut devices) {
        device.index = index;
    }
    let (cpu_milli, memory_mib) = (amount(&facts.allocatable, CPU), amount(&facts.allocatable, MEMORY) / MIB);
    let mut not_offered = Vec::new();
    let mut leave_out = |annotation: &str, reason: String| {
        let resource = format!("annotation {annotation}");
        not_offered.push(NotOffered { node: facts.name.clone(), resource, reason });
    };
    if !facts.unhealthy.is_empty()
        && let Err(reason) = health::mark(&facts.unhealthy, &mut devices)
    {
        leave_out(health::FAULTS_ANNOTATION, reason);
    }
    let mut wiring = if facts.wiring.is_empty() {
        Wiring::default()
    } else {
        match wiring::read(&facts.wiring, &mut devices, cpu_milli, memory_mib, salt) {
            Ok(wiring) => wiring,
            Err(reason) => {
                leave_out(wiring::WIRING_ANNOTATION, reason);
                Wiring::default()
            }
        }
    };
    let (by_functions, others) = functions::of(facts, local, rdma, &wiring.rdma);
    wiring.rdma.extend(by_functions);
    not_offered.extend(others);
    not_offered.extend(node_xid::count_unhealthy(&facts.name, &facts.xids, &mut devices));
    // The owner's annotation takes precedence.
    if let Some(topology) = topology.filter(|_| wiring.numa.is_empty()) {
        wiring.numa = topology.apply(&mut devices, cpu_milli, memory_mib);
    }
    // A driver may tell a NUMA node that nothing else lists.
    for (device, published) in devices.iter_mut().zip(published_numa) {
        let is_listed = |number: &u32| wiring.numa.iter().any(|zone| zone.numa_node == *number);
        device.numa_node = device.numa_node.or(published).filter(is_listed);
    }
    let node = Node {
        id: salt.node_id(&facts.name),
        cpu_milli,
        memory_mib,
        local_cpu_milli: amount(local, CPU).max(reserve.cpu_milli),
        local_memory_mib: amount(local, MEMORY).div_ceil(MIB).max(reserve.memory_mib),
        devices,
        schedulable: facts.schedulable,
        numa: wiring.numa,
        rdma: wiring.rdma,
        not_ready: !facts.ready,
        // The kubelet's topology manager does not know devices of claims.
        enforces: enforces.or_else(|| {
            let numa = topology.filter(|topology| topology.enforces_numa());
            numa.map(|_| Enforcement { numa: true, ..Enforcement::default() })
        }),
    };
    (node, not_offered)
}

/// Healthy devices, with local use from the last one down, then the unhealthy ones.
fn pool_devices(pool: &GpuPool, local_units: u64) -> Vec<Device> {
    // More devices than an offer holds are cut off anyway.
    let healthy = usize::try_from(pool.units.div_ceil(pool.units_each)).unwrap_or(usize::MAX).min(MAX_DEVICES);
    let unhealthy = usize::try_from(pool.unhealthy).unwrap_or(usize::MAX).min(MAX_DEVICES);
    let mut units_left = pool.units;
    let mut devices: Vec<(u64, Device)> = Vec::with_capacity(healthy);
    for _ in 0..healthy {
        let units = units_left.min(pool.units_each);
        units_left -= units;
        devices.push((units, with_units(&pool.model, units)));
    }
    let mut local_left = local_units;
    for (units, device) in devices.iter_mut().rev() {
        let taken = local_left.min(*units);
        local_left -= taken;
        device.local_use_milli = part_of_device(taken, *units);
    }
    let sick = Device { healthy: false, ..pool.model.clone() };
    devices.into_iter().map(|(_, device)| device).chain(std::iter::repeat_n(sick, unhealthy)).collect()
}

/// The last MIG device of a pool may hold fewer instances than the others.
fn with_units(model: &Device, units: u64) -> Device {
    let mut device = model.clone();
    let profile = match device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref()) {
        Some(sharing::Mode::Mig(mig)) => mig.instances.first().map(|instances| instances.profile.clone()),
        _ => None,
    };
    if let Some(profile) = profile {
        device.sharing = Some(mig_sharing(&profile, units));
    }
    device
}

/// Thousandths as the broker counts them: equal parts rounded down, all parts the whole device.
fn part_of_device(taken: u64, units: u64) -> u32 {
    if taken == 0 {
        return 0;
    }
    if taken >= units {
        return WHOLE_MILLI;
    }
    u32::try_from(u64::from(WHOLE_MILLI) / units * taken).unwrap_or(WHOLE_MILLI)
}

#[cfg(test)]
mod fuzz_objects;
#[cfg(test)]
mod tests;
