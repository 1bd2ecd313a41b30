//! Converts between a node's state in the index and its devices.

use comity_types::{ClusterId, NodeId};
use litemap::LiteMap;

use crate::feasibility::fit::device::Load;
use crate::feasibility::fit::free_cpu_and_memory;
use crate::feasibility::fit::wired::in_idle_clique;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::GpuDemand;
use crate::model::inventory::{Device, Node, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::model::mig::Slots;
use crate::model::placement::{DeviceShare, NodePlacement, Placement};
use crate::scheduler::packing::NodeState;
use crate::scheduler::placement_index::all_nodes::ServedTask;
use crate::state::occupancy::NodeOccupancy;

/// The free amounts of a node.
pub(crate) fn free(node: &Node, lent: Option<&NodeOccupancy>) -> NodeState {
    if !node.schedulable {
        return NodeState::new(0, 0, std::iter::empty());
    }
    let (cpu_milli, memory_mib) = free_cpu_and_memory(node, lent, Load::Current);
    let devices = (0..).zip(&node.devices).map(|(index, device)| free_of(device, index, lent));
    NodeState::new(cpu_milli, memory_mib, devices)
}

/// Free thousandths of a device that may be lent.
fn free_of(device: &Device, index: u32, lent: Option<&NodeOccupancy>) -> u16 {
    let lent = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
    let free = WHOLE_MILLI.saturating_sub(device.local_use_milli).saturating_sub(lent);
    let usable = device.healthy && (free == WHOLE_MILLI || device.sharing != Sharing::Exclusive);
    if usable { u16::try_from(free).unwrap_or(u16::MAX) } else { 0 }
}

/// Places a task on a node: a share on the first device with `level` free, several devices on the first whole ones.
pub(crate) fn lay_out(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    id: &NodeId,
    node: &Node,
    level: u16,
    ServedTask { task, share: served }: &ServedTask,
    gpus: &GpuDemand,
) -> Option<Placement> {
    let offer = snapshot.state.clusters.get(donor)?.offer.as_ref()?;
    let lent = snapshot.occupancy(donor, id);
    let level = if task.devices > 1 { task.milli } else { level };
    let share = DeviceShare { milli: u32::from(served.milli_each), units: 1, slots: Slots::NONE };
    let mut free: Vec<(u32, &Device)> =
        (0..).zip(&node.devices).filter(|(index, device)| free_of(device, *index, lent) == level).collect();
    if free.len() > usize::from(task.devices) {
        free.sort_by_cached_key(|(index, device)| (in_idle_clique(node, lent, device), *index));
    }
    let devices: LiteMap<u32, DeviceShare> =
        free.into_iter().take(usize::from(task.devices)).map(|(index, _)| (index, share)).collect();
    if devices.len() != usize::from(task.devices) {
        return None;
    }
    let part =
        NodePlacement { devices, cpu_milli: task.cpu_milli, memory_mib: task.memory_mib, ..NodePlacement::default() };
    Some(Placement {
        donor: donor.clone(),
        nodes: LiteMap::from_iter([(id.clone(), part)]),
        offer_generation: offer.generation,
        resource_name: served.resource_name.clone(),
        resource_count: u64::from(gpus.count) * u64::from(served.resources_each),
        profile: None,
    })
}
