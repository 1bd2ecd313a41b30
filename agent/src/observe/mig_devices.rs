//! The devices of a node whose MIG layouts the agent knows, because it writes them.

use std::collections::BTreeSet;

use comity_agent_kubernetes::gpu_resource::{NVIDIA_GPU, NVIDIA_MIG};
use comity_agent_kubernetes::pod_request::Amounts;
use comity_proto::v1::{Device, Sharing, sharing};
use comity_types::mig::Board;

use super::gpu_pool::{board_model, exclusive};
use super::node_facts::NodeFacts;
use super::{LocalReserve, WHOLE_MILLI};
use crate::mig::device_layout::DeviceLayout;
use crate::mig::mig_book::{BookedDevice, NodeBook};
use crate::mig::mig_node::{of as amount, resource, resources};

/// Instances of one device in local use, by start.
type LocalStarts = BTreeSet<u8>;

/// The devices by index; an error, one sentence, if the layouts are unknown.
///
/// Nobody sees which device a local pod holds. Local use is shown on instances that no lease holds, from the last
/// device down; only what is left is shown on leased ones, where it says that the node is overcommitted.
pub(super) fn of(
    facts: &NodeFacts,
    book: &NodeBook,
    local: &Amounts,
    reserve: LocalReserve,
) -> Result<Vec<Device>, String> {
    let booked = match book {
        NodeBook::Known(booked) => booked,
        NodeBook::Unknown(reason) => return Err(format!("{reason}; instances are offered by number")),
    };
    let product = facts.labels.get("nvidia.com/gpu.product").map_or("", String::as_str);
    let model = board_model(facts, product, NVIDIA_MIG)?;
    let board = Board::of(product, model.memory_mib).ok_or("the board is unknown")?;
    let marked = local_starts(facts, booked, local);
    let mut whole_in_use = amount(local, NVIDIA_GPU);
    let held_back = booked.len().saturating_sub(usize::try_from(reserve.gpus_per_node).unwrap_or(usize::MAX));
    let mut devices: Vec<Device> = Vec::with_capacity(booked.len());
    for (at, (device, starts)) in booked.iter().zip(&marked).enumerate().rev() {
        devices.push(match &device.layout {
            DeviceLayout::Whole => {
                let is_used = whole_in_use > 0 || at >= held_back;
                whole_in_use = whole_in_use.saturating_sub(1);
                Device {
                    resource_name: NVIDIA_GPU.to_owned(),
                    sharing: Some(Sharing { mode: Some(exclusive()) }),
                    local_use_milli: if is_used { WHOLE_MILLI } else { 0 },
                    ..model.clone()
                }
            }
            DeviceLayout::Cut(_) => {
                let is_idle = is_unused(&device.layout, local);
                let layout = layout(device, starts, is_idle && at < held_back);
                let part = |(_, profile): (u8, &str)| board.shape(profile).map_or(0, |(_, shape)| board.milli(shape));
                let local_milli: u32 =
                    device.layout.instances().filter(|(start, _)| starts.contains(start)).map(part).sum();
                // A device without instances that is not cut now has nothing to lend.
                let is_held_back = at >= held_back || layout.instances.is_empty() && !(device.may_cut && is_idle);
                let mig = sharing::Mig { instances: Vec::new(), layout: Some(layout) };
                Device {
                    sharing: Some(Sharing { mode: Some(sharing::Mode::Mig(mig)) }),
                    local_use_milli: if is_held_back { WHOLE_MILLI } else { local_milli },
                    ..model.clone()
                }
            }
        });
    }
    devices.reverse();
    Ok(devices)
}

/// Whether no local pod uses a profile that the device has.
fn is_unused(layout: &DeviceLayout, local: &Amounts) -> bool {
    layout.instances().all(|(_, profile)| amount(local, &resource(profile)) == 0)
}

fn layout(device: &BookedDevice, local: &LocalStarts, is_idle: bool) -> sharing::MigLayout {
    let instances: Vec<sharing::MigInstance> = device
        .layout
        .instances()
        .map(|(start, profile)| sharing::MigInstance {
            profile: profile.to_owned(),
            start: start.into(),
            local: local.contains(&start),
        })
        .collect();
    // An offer of no instance says that the device can be cut, if only later.
    let repartition = device.may_cut && is_idle && local.is_empty() || instances.is_empty();
    sharing::MigLayout { instances, repartition }
}

/// Whether a lease holds an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leased {
    Yes,
    No,
}

/// Marks up to `count` instances that one resource counts, from the last device down. Returns how many.
fn mark(booked: &[BookedDevice], marked: &mut [LocalStarts], name: &str, leased: Leased, count: u64) -> u64 {
    let mut done = 0;
    for (device, starts) in booked.iter().zip(marked).rev() {
        for (start, profile) in device.layout.instances() {
            let is_leased = device.leased.contains(&start);
            if done < count && resource(profile) == name && is_leased == (leased == Leased::Yes) {
                starts.insert(start);
                done += 1;
            }
        }
    }
    done
}

/// Chooses the instances in local use, for each device.
fn local_starts(facts: &NodeFacts, booked: &[BookedDevice], local: &Amounts) -> Vec<LocalStarts> {
    let layouts: Vec<DeviceLayout> = booked.iter().map(|device| device.layout.clone()).collect();
    let mut marked = vec![LocalStarts::new(); booked.len()];
    let is_settled = facts.labels.get("nvidia.com/mig.config.state").is_some_and(|state| state == "success");
    for (name, total) in resources(&layouts).iter().filter(|(name, _)| *name != NVIDIA_GPU) {
        let used = amount(local, name);
        // Unhealthy instances cannot be allocated; during a change none can.
        let unhealthy = if is_settled { total.saturating_sub(amount(&facts.allocatable, name)) } else { 0 };
        let free = mark(booked, &mut marked, name, Leased::No, used.saturating_add(unhealthy));
        mark(booked, &mut marked, name, Leased::Yes, used.saturating_sub(free));
    }
    marked
}
