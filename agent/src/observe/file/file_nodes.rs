//! Nodes and devices of an inventory file, as an offer has them.

use std::collections::BTreeSet;

use comity_agent_model::node_id::NodeSalt;
use comity_proto::v1;
use comity_types::is_printable;
use serde_saphyr::Location;

use super::amounts::{cpu_milli, memory_mib};
use super::inventory_format::{FileGpus, FileNode, FileSharing, InventoryFile};
use super::mistakes::{Problem, Problems};
use super::node_wiring;
use super::sharing_mode::sharing_mode;
use crate::observe::gpu_pool::architecture;
use crate::observe::{LocalReserve, MAX_DEVICES, MAX_NODES, WHOLE_MILLI};

/// The nodes, complete only if no problem was recorded.
pub(super) fn nodes(
    file: &InventoryFile,
    salt: &NodeSalt,
    reserve: &LocalReserve,
    problems: &mut Problems,
) -> Vec<v1::Node> {
    let mut names = BTreeSet::new();
    let mut nodes = Vec::with_capacity(file.nodes.len().min(MAX_NODES));
    for (count, given) in file.nodes.iter().enumerate() {
        if count >= MAX_NODES {
            problems.push(Problem(given.referenced, format!("more than {MAX_NODES} nodes; an offer holds no more")));
            break;
        }
        if let Some(name) = problems.required(&given.value.name, given.referenced, "name: titan")
            && (name.value.is_empty() || !names.insert(name.value.as_str()))
        {
            let reason = format!("name {:?} is empty or given twice; each node needs a name of its own", name.value);
            problems.push(Problem(name.referenced, reason));
        }
        nodes.push(node(&given.value, given.referenced, salt, reserve, problems));
    }
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    nodes
}

fn node(given: &FileNode, at: Location, salt: &NodeSalt, reserve: &LocalReserve, problems: &mut Problems) -> v1::Node {
    let name = given.name.as_ref().map_or("", |name| name.value.as_str());
    let local = given.local_use.as_ref();
    let local_cpu = local.and_then(|local| local.cpu.as_ref()).map_or(Ok(0), cpu_milli);
    let local_memory = local.and_then(|local| local.memory.as_ref()).map_or(Ok(0), memory_mib);
    let cpu = problems.required(&given.cpu, at, "cpu: \"64\"").map_or(Ok(0), cpu_milli);
    let memory = problems.required(&given.memory, at, "memory: 512Gi").map_or(Ok(0), memory_mib);
    let whole = problems.take(cpu).zip(problems.take(memory));
    let numa = whole.map(|(cpu, memory)| node_wiring::numa(given, at, cpu, memory));
    let (cpu_milli, memory_mib) = whole.unwrap_or_default();
    let devices = devices(given, at, reserve, problems);
    v1::Node {
        id: salt.node_id(name),
        cpu_milli,
        memory_mib,
        local_cpu_milli: problems.take(local_cpu).unwrap_or_default().max(reserve.cpu_milli),
        local_memory_mib: problems.take(local_memory).unwrap_or_default().max(reserve.memory_mib),
        devices,
        schedulable: given.schedulable,
        not_ready: !given.ready,
        numa: numa.and_then(|numa| problems.take(numa)).unwrap_or_default(),
        rdma: problems.take(node_wiring::rdma(given, at)).unwrap_or_default(),
        enforces: node_wiring::enforcement(given),
    }
}

fn devices(given: &FileNode, at: Location, reserve: &LocalReserve, problems: &mut Problems) -> Vec<v1::Device> {
    let mut devices = Vec::new();
    let groups = problems.required(&given.gpus, at, "gpus: []").map_or(&[][..], Vec::as_slice);
    for gpus in groups {
        let device = device(&gpus.value, gpus.referenced, problems);
        let Some(count) = problems.required(&gpus.value.count, gpus.referenced, "count: 8") else { continue };
        let room = MAX_DEVICES.saturating_sub(devices.len());
        let number = usize::try_from(count.value).unwrap_or(usize::MAX);
        if number == 0 || number > room {
            let reason = format!("count {number} is out of range; a node has 1 to {MAX_DEVICES} devices in all");
            problems.push(Problem(count.referenced, reason));
            continue;
        }
        devices.extend(std::iter::repeat_n(device, number));
    }
    let taken = given.local_use.as_ref().map_or(0, |local| local.gpus).max(reserve.gpus_per_node);
    for device in
        devices.iter_mut().rev().filter(|device| device.healthy).take(usize::try_from(taken).unwrap_or(usize::MAX))
    {
        device.local_use_milli = WHOLE_MILLI;
    }
    for (index, device) in (0_u32..).zip(&mut devices) {
        device.index = index;
    }
    devices
}

fn device(given: &FileGpus, at: Location, problems: &mut Problems) -> v1::Device {
    let product = problems.required(&given.product, at, "product: NVIDIA-H100-80GB-HBM3");
    if let Some(product) = product.filter(|product| product.value.is_empty()) {
        let reason = "product is empty; write the model, as in NVIDIA-H100-80GB-HBM3".to_owned();
        problems.push(Problem(product.referenced, reason));
    }
    if let Some(product) = product.filter(|product| !is_printable(&product.value)) {
        let reason = "product has control or invisible characters; write the model, as in NVIDIA-H100-80GB-HBM3";
        problems.push(Problem(product.referenced, reason.to_owned()));
    }
    let memory_mib = problems.required(&given.memory_mib, at, "memoryMiB: 81559").copied();
    let family = problems.required(&given.architecture, at, "architecture: hopper").map(|family| architecture(family));
    let capability = problems.required(&given.compute_capability, at, "computeCapability: \"9.0\"").cloned();
    let driver = problems.required(&given.driver_version, at, "driverVersion: 550.107.02").cloned();
    let mode = given.sharing.as_ref().map_or(Ok(v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {})), sharing_mode);
    let is_mig = given.sharing.as_ref().is_some_and(|sharing| matches!(sharing.value, FileSharing::Mig(_)));
    let usual_name = if is_mig { "nvidia.com/mig" } else { "nvidia.com/gpu" };
    v1::Device {
        index: 0,
        product_name: product.map(|product| product.value.clone()).unwrap_or_default(),
        architecture: family.unwrap_or_default(),
        memory_mib: memory_mib.unwrap_or_default(),
        cuda_compute_capability: capability.unwrap_or_default(),
        driver_version: driver.unwrap_or_default(),
        sharing: Some(v1::Sharing { mode: problems.take(mode) }),
        healthy: given.healthy,
        local_use_milli: 0,
        resource_name: given.resource_name.clone().unwrap_or_else(|| usual_name.to_owned()),
        numa_node: given.numa.as_ref().map(|numa| numa.value),
        fault: problems.take(fault(given)).flatten(),
        nvlink_clique: given.nvlink.as_ref().map(|clique| clique.value.clone()).unwrap_or_default(),
    }
}

/// The fault of devices; those that are not healthy always have one.
fn fault(given: &FileGpus) -> Result<Option<v1::DeviceFault>, Problem> {
    match &given.fault {
        Some(fault) => {
            fault.value.to_proto().map(Some).map_err(|reason| Problem(fault.referenced, format!("fault: {reason}")))
        }
        None => Ok((!given.healthy)
            .then(|| v1::DeviceFault { class: v1::FaultClass::Degraded.into(), ..v1::DeviceFault::default() })),
    }
}
