//! Devices that DRA drivers publish as devices of the offer. Pure.
//!
//! Every device has a name here: its health, its local use and its position are its own. The claims of leases hold
//! positions, see `comity_agent_kubernetes::dynamic_resources`.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::dynamic_resources::{
    AllocatedDevice, ClaimFacts, DevicePools, GpuClass, GpuTaint, LeasedDevice, PublishedGpu, TaintEffect, order,
};
use comity_agent_kubernetes::gpu_resource::{NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG_PREFIX};
use comity_proto::v1::{Device, DeviceFault, FaultClass, Sharing, sharing};

use super::WHOLE_MILLI;
use super::gpu_pool::mig_sharing;
use super::health::MAX_FAULT_MESSAGE_BYTES;
use super::node_facts::NodeFacts;
use super::not_offered::NotOffered;

/// Published devices, and the claims of all namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraDevices {
    pub(crate) pools: DevicePools,
    pub(crate) claims: Vec<ClaimFacts>,
}

/// The same by node.
#[derive(Debug)]
pub(crate) struct DraView<'a> {
    gpus: BTreeMap<&'a str, Vec<&'a PublishedGpu>>,
    unusable: BTreeMap<&'a str, Vec<NotOffered>>,
    /// Devices that claims outside leases have.
    local: BTreeSet<&'a AllocatedDevice>,
    /// Devices of leases, by node.
    held: BTreeMap<&'a str, Vec<&'a LeasedDevice>>,
}

impl<'a> DraView<'a> {
    /// Claims in the namespaces `lent` belong to leases.
    pub(crate) fn new(devices: &'a DraDevices, lent: &BTreeSet<String>) -> Self {
        let (leases, others): (Vec<_>, Vec<_>) =
            devices.claims.iter().partition(|claim| lent.contains(&claim.namespace));
        let mut held: BTreeMap<&str, Vec<&LeasedDevice>> = BTreeMap::new();
        for leased in leases.iter().filter_map(|claim| claim.leased.as_ref()) {
            held.entry(&leased.node).or_default().push(leased);
        }
        let mut unusable: BTreeMap<&str, Vec<NotOffered>> = BTreeMap::new();
        for (node, device) in devices.pools.unusable() {
            let resource = format!("device {}", device.device);
            let left = NotOffered { node: node.to_owned(), resource, reason: device.reason.clone() };
            unusable.entry(node).or_default().push(left);
        }
        let local = others.iter().flat_map(|claim| &claim.allocated).collect();
        Self { gpus: devices.pools.gpus(), unusable, local, held }
    }

    /// The devices of a node by position, and those that cannot be offered. `reserve` of them are held back for local
    /// work.
    pub(crate) fn devices(&self, node: &NodeFacts, reserve: u32) -> (Vec<Device>, Vec<NotOffered>) {
        let nothing = Vec::new();
        let gpus = self.gpus.get(node.name.as_str()).unwrap_or(&nothing);
        let none_held = Vec::new();
        let held = self.held.get(node.name.as_str()).unwrap_or(&none_held);
        let mut not_offered = self.unusable.get(node.name.as_str()).cloned().unwrap_or_default();
        if let Some(resource) = served_by_plugin(node) {
            if !gpus.is_empty() {
                let reason = format!(
                    "the device plugin counts this node's GPUs as {resource}, and they are offered so; remove the \
                     device plugin from the node, and they are offered by name"
                );
                let resource = "ResourceSlices".to_owned();
                not_offered.push(NotOffered { node: node.name.clone(), resource, reason });
            }
            return (Vec::new(), not_offered);
        }
        let by_key: BTreeMap<String, &PublishedGpu> = gpus.iter().map(|gpu| (gpu.key(), *gpu)).collect();
        let positions: BTreeMap<u32, String> =
            held.iter().map(|leased| (leased.index, leased.device.clone())).collect();
        let names = order(&by_key.keys().cloned().collect(), &positions);
        let clique = node.labels.get("nvidia.com/gpu.clique").map_or("", String::as_str);
        let device = |name: Option<String>| match name.as_deref().and_then(|name| by_key.get(name)) {
            Some(gpu) => self.device(gpu, clique),
            None => absent(held.iter().find(|leased| Some(&leased.device) == name.as_ref()).copied()),
        };
        let mut devices: Vec<Device> = names.into_iter().map(device).collect();
        hold_back(&mut devices, &positions, reserve);
        (devices, not_offered)
    }

    fn device(&self, gpu: &PublishedGpu, clique: &str) -> Device {
        let allocated =
            AllocatedDevice { driver: gpu.class.driver().to_owned(), pool: gpu.pool.clone(), device: gpu.name.clone() };
        let is_mig = gpu.mig_profile.is_some();
        Device {
            index: 0,
            // As GPU Feature Discovery writes it.
            product_name: gpu.product_name.replace(' ', "-"),
            architecture: gpu.architecture.clone(),
            memory_mib: gpu.memory_mib,
            cuda_compute_capability: gpu.compute_capability.splitn(3, '.').take(2).collect::<Vec<_>>().join("."),
            driver_version: gpu.driver_version.clone(),
            sharing: Some(gpu.mig_profile.as_ref().map_or_else(exclusive, |profile| mig_sharing(profile, 1))),
            healthy: gpu.taints.iter().all(|taint| taint.effect == TaintEffect::Inform),
            local_use_milli: if self.local.contains(&allocated) { WHOLE_MILLI } else { 0 },
            resource_name: gpu.class.quota_name(),
            numa_node: gpu.numa_node,
            // NVLink does not connect MIG instances.
            nvlink_clique: if is_mig { String::new() } else { clique.to_owned() },
            fault: fault(&gpu.taints, gpu.class.driver()),
        }
    }
}

/// The resource by which a device plugin counts the node's GPUs. The kubelet keeps its capacity for five minutes after the
/// plugin is gone.
fn served_by_plugin(node: &NodeFacts) -> Option<&str> {
    let counts = |name: &str| [NVIDIA_GPU, NVIDIA_GPU_SHARED].contains(&name) || name.starts_with(NVIDIA_MIG_PREFIX);
    node.capacity.iter().find(|(name, count)| counts(name) && **count > 0).map(|(name, _)| name.as_str())
}

/// A position without a published device: of a lease whose device is gone, or empty.
fn absent(leased: Option<&LeasedDevice>) -> Device {
    let class = leased.map_or(GpuClass::NvidiaGpu, |leased| leased.class);
    // Not lost: a driver that is restarted or upgraded publishes nothing for a while.
    let fault = leased.map(|_| DeviceFault {
        class: FaultClass::Degraded.into(),
        xid: 0,
        message: "its driver no longer publishes it".to_owned(),
    });
    Device { sharing: Some(exclusive()), resource_name: class.quota_name(), fault, ..Device::default() }
}

/// The worst fault that taints tell.
fn fault(taints: &[GpuTaint], driver: &str) -> Option<DeviceFault> {
    let told = taints.iter().filter_map(|taint| {
        let keeps_away = taint.effect != TaintEffect::Inform;
        let name = taint.key.strip_prefix(driver).and_then(|name| name.strip_prefix('/')).unwrap_or_default();
        let xid = if name == "xid" { taint.value.parse().unwrap_or(0) } else { 0_u32 };
        let (rank, class) = match name {
            "gpu-lost" if keeps_away => (3, FaultClass::Lost),
            // The broker knows the class of an Xid.
            _ if xid > 0 && keeps_away => (2, FaultClass::Unspecified),
            _ if taint.effect == TaintEffect::NoExecute => (1, FaultClass::Degraded),
            _ if xid > 0 => (0, FaultClass::Application),
            _ => return None,
        };
        let mut message = format!("tainted {}={}", taint.key, taint.value);
        message.truncate(message.floor_char_boundary(MAX_FAULT_MESSAGE_BYTES));
        Some((rank, DeviceFault { class: class.into(), xid, message }))
    });
    told.max_by_key(|(rank, _)| *rank).map(|(_, fault)| fault)
}

/// Holds devices back for local work, from the last one down; those of leases last.
fn hold_back(devices: &mut [Device], held: &BTreeMap<u32, String>, reserve: u32) {
    let local = devices.iter().filter(|device| device.local_use_milli > 0).count();
    let missing = usize::try_from(reserve).unwrap_or(usize::MAX).saturating_sub(local);
    let is_held = |at: usize| u32::try_from(at).is_ok_and(|at| held.contains_key(&at));
    let free = |at: &usize| devices[*at].healthy && devices[*at].local_use_milli == 0;
    let mut free: Vec<usize> = (0..devices.len()).rev().filter(free).collect();
    free.sort_by_key(|at| is_held(*at));
    for at in free.into_iter().take(missing) {
        devices[at].local_use_milli = WHOLE_MILLI;
    }
}

fn exclusive() -> Sharing {
    Sharing { mode: Some(sharing::Mode::Exclusive(sharing::Exclusive {})) }
}

#[cfg(test)]
mod tests;
