//! The devices of a node whose GPUs HAMi shares, and their local use by device.

use comity_agent_kubernetes::gpu_resource::NVIDIA_GPU;
use comity_agent_kubernetes::hami::{
    HANDSHAKE_ANNOTATIONS, POD_SHARES_ANNOTATION, REGISTER_ANNOTATION, RegisteredDevice, pod_shares, registered_devices,
};
use comity_proto::v1::{Device, Sharing, sharing};

use super::hami_annotations::HamiAnnotations;
use crate::observe::gpu_pool::nvidia_model;
use crate::observe::node_facts::NodeFacts;
use crate::observe::not_offered::NotOffered;
use crate::observe::pod_facts::PodFacts;
use crate::observe::{LocalReserve, WHOLE_MILLI};

/// The devices in the order of their registration, which a lease's placement refers to. `pods` are those of the node
/// that belong to no lease.
pub(crate) fn devices(
    node: &NodeFacts,
    hami: &HamiAnnotations,
    pods: &[&PodFacts],
    reserve: &LocalReserve,
) -> (Vec<Device>, Vec<NotOffered>) {
    let not_offered = |resource: String, reason: String| NotOffered { node: node.name.clone(), resource, reason };
    let registered = match registered(node, hami) {
        Ok(registered) => registered,
        Err(reason) => return (Vec::new(), vec![not_offered(NVIDIA_GPU.to_owned(), reason)]),
    };
    let (mut used, unknown) = local_use(&registered, pods);
    let mut reasons = Vec::new();
    let mut whole = reserve.gpus_per_node;
    if let Some((gpus, reason)) = unknown {
        reasons.push(not_offered(format!("annotation {POD_SHARES_ANNOTATION}"), reason));
        whole = whole.max(gpus);
    }
    // From the last one down: leases are placed from the first one up.
    for used in used.iter_mut().rev().take(usize::try_from(whole).unwrap_or(usize::MAX)) {
        *used = WHOLE_MILLI;
    }
    for (device, used) in registered.iter().zip(&mut used) {
        if hami.cordoned.split(',').any(|uuid| uuid.trim() == device.uuid) {
            *used = WHOLE_MILLI;
        }
    }
    let devices: Result<Vec<Device>, String> =
        registered.iter().zip(used).map(|(device, used)| offered(node, device, used)).collect();
    match devices {
        Ok(devices) => (devices, reasons),
        Err(reason) => (Vec::new(), vec![not_offered(NVIDIA_GPU.to_owned(), reason)]),
    }
}

fn registered(node: &NodeFacts, hami: &HamiAnnotations) -> Result<Vec<RegisteredDevice>, String> {
    let handshake = HANDSHAKE_ANNOTATIONS[0];
    if hami.handshake.is_empty() {
        return Err(format!("annotation {handshake} is absent; is HAMi's scheduler running?"));
    }
    if hami.handshake.starts_with("Deleted") {
        return Err(format!("annotation {handshake} is {:?}: HAMi has removed the node", short(&hami.handshake)));
    }
    if hami.is_silent {
        return Err(format!(
            "annotation {handshake} has been {:?} for a minute; is HAMi's device plugin running on the node?",
            short(&hami.handshake)
        ));
    }
    if node.allocatable.get(NVIDIA_GPU).is_none_or(|units| *units == 0) {
        return Err(format!("HAMi's device plugin serves no {NVIDIA_GPU}; is it running on the node?"));
    }
    let devices =
        registered_devices(&hami.register).map_err(|reason| format!("annotation {REGISTER_ANNOTATION}: {reason}"))?;
    let real = node.labels.get("nvidia.com/gpu.memory").and_then(|memory| memory.parse::<u32>().ok());
    if let (Some(real), Some(device)) = (real, devices.iter().find(|device| Some(device.memory_mib) > real)) {
        return Err(format!(
            "HAMi registers {} MiB for a GPU of {real} MiB; a share would not have its memory: set deviceMemoryScaling \
             to 1",
            device.memory_mib
        ));
    }
    Ok(devices)
}

/// Thousandths by device, and the number of GPUs that pods hold without a readable annotation, with the reason.
fn local_use(registered: &[RegisteredDevice], pods: &[&PodFacts]) -> (Vec<u32>, Option<(u32, String)>) {
    let mut used = vec![0_u32; registered.len()];
    let mut unknown: Option<(u32, String)> = None;
    for pod in pods {
        let wanted = pod.requests.iter().find(|(name, _)| &**name == NVIDIA_GPU).map_or(0, |(_, count)| *count);
        if wanted == 0 {
            continue;
        }
        let shares = match pod.hami_shares.as_deref() {
            Some(text) => pod_shares(text),
            None => Err("it is absent".to_owned()),
        };
        let mut places = Vec::new();
        let problem = match shares {
            Err(problem) => Some(problem),
            Ok(shares) => shares.into_iter().find_map(|share| {
                match registered.iter().position(|device| device.uuid == share.uuid) {
                    Some(at) => {
                        places.push((at, registered[at].milli_of(share.memory_mib, share.cores)));
                        None
                    }
                    None => Some(format!("{} is none of the node's devices", share.uuid)),
                }
            }),
        };
        match problem {
            None => {
                for (at, milli) in places {
                    used[at] = used[at].saturating_add(milli).min(WHOLE_MILLI);
                }
            }
            Some(problem) => {
                let (gpus, _) = unknown.get_or_insert_with(|| {
                    (0, format!("of a pod in namespace {}: {problem}; its GPUs count as whole", pod.namespace))
                });
                *gpus = gpus.saturating_add(u32::try_from(wanted).unwrap_or(u32::MAX));
            }
        }
    }
    (used, unknown)
}

fn offered(node: &NodeFacts, device: &RegisteredDevice, local_use_milli: u32) -> Result<Device, String> {
    let fractional = sharing::Fractional { step_milli: device.step_milli() };
    Ok(Device {
        memory_mib: device.memory_mib.into(),
        sharing: Some(Sharing { mode: Some(sharing::Mode::Fractional(fractional)) }),
        healthy: device.healthy,
        local_use_milli,
        ..nvidia_model(node, &device.product, NVIDIA_GPU)?
    })
}

/// The beginning of a text that somebody else wrote, for a log.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}
