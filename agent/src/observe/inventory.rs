//! Builds the offered nodes from Kubernetes nodes and pods. Pure: the same facts give the same nodes, byte for byte.
//!
//! Local use is the scheduler's effective request of all unfinished pods that no lease accounts for, including pods
//! being deleted. The API does not tell which device a pod holds, so local use fills a node's devices from the
//! last one down; leases are placed from the first one up.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::pod_request::{Amounts, CPU, MEMORY};
use comity_proto::v1::{Device, Node, sharing};
use comity_types::LeaseId;

use super::gpu_pool::{self, GpuPool, NotOffered, mig_sharing};
use super::lent_pods::{self, DriftedPod, Guests};
use super::node_facts::NodeFacts;
use super::pod_facts::PodFacts;
use super::topology::NodeTopology;
use super::wiring::{self, Wiring};
use super::{InventorySettings, MAX_DEVICES, MAX_NODES, MIB, WHOLE_MILLI, functions, health, node_marks};

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

/// Builds the inventory. Pods of the leases of `guests` are local use only where they exceed their leases; `topologies`
/// is keyed by node name.
pub(crate) fn build_nodes<'a>(
    nodes: impl IntoIterator<Item = &'a NodeFacts>,
    pods: impl IntoIterator<Item = &'a PodFacts>,
    guests: &Guests,
    topologies: &BTreeMap<String, NodeTopology>,
    settings: &InventorySettings,
) -> BuiltInventory {
    let divided = lent_pods::divide(pods, guests, &settings.salt);
    let nothing = Amounts::new();
    let nodes: Vec<&NodeFacts> = nodes.into_iter().collect();
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let mut built = BuiltInventory {
        nodes: Vec::new(),
        not_offered: functions::uncounted(&nodes, &settings.rdma),
        unused: divided.unused(&names, guests, &settings.salt),
        drifted: divided.drifted,
        unmarked: node_marks::missing(&nodes, &guests.leases, &settings.salt),
    };
    for facts in nodes.into_iter().filter(|facts| !facts.is_virtual) {
        let (pools, not_offered) = gpu_pool::pools(facts);
        built.not_offered.extend(not_offered);
        if !pools.is_empty() {
            let local = divided.local.get(facts.name.as_str()).unwrap_or(&nothing);
            let topology = topologies.get(&facts.name);
            let (node, not_offered) = node(facts, &pools, topology, local, settings);
            built.nodes.push(node);
            built.not_offered.extend(not_offered);
        }
    }
    built.nodes.sort_by(|a, b| a.id.cmp(&b.id));
    built.nodes.truncate(MAX_NODES);
    built.not_offered.sort();
    built
}

/// The offered node, and its annotations and resources that cannot be offered.
fn node(
    facts: &NodeFacts,
    pools: &[GpuPool],
    topology: Option<&NodeTopology>,
    local: &Amounts,
    InventorySettings { salt, reserve, rdma }: &InventorySettings,
) -> (Node, Vec<NotOffered>) {
    let amount = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
    let mut devices = Vec::new();
    let mut reserved = u64::from(reserve.gpus_per_node);
    for pool in pools {
        let held_back = reserved.saturating_mul(pool.units_each).min(pool.units);
        reserved = reserved.saturating_sub(held_back.div_ceil(pool.units_each));
        devices.extend(pool_devices(pool, amount(local, &pool.counted_by).max(held_back)));
    }
    devices.truncate(MAX_DEVICES);
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
    // The owner's annotation takes precedence.
    if let Some(topology) = topology.filter(|_| wiring.numa.is_empty()) {
        wiring.numa = topology.apply(&mut devices, cpu_milli, memory_mib);
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
mod tests;
