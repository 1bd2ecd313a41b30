//! Pools: interchangeable devices of a node; local work may hold any of them.

use std::collections::BTreeMap;

use comity_types::ClusterId;

use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::inventory::{Device, Node, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::model::placement::Placement;
use crate::state::occupancy::NodeOccupancy;
use crate::state::usable::Usable;

/// Whether two devices of a node share a pool. A device with known MIG slots is a pool of its own.
pub(crate) fn share_pool(one: &Device, other: &Device) -> bool {
    let known = |device: &Device| matches!(device.sharing, Sharing::Mig { layout: Some(_), .. });
    !known(one)
        && !known(other)
        && one.resource_name == other.resource_name
        && one.product_name == other.product_name
        && one.sharing.mode() == other.sharing.mode()
}

/// Checks that free devices are really free. Local use that is counted on a lent device must actually be on another
/// device of its pool; a lease placed there would be reclaimed at once.
pub(crate) fn check_pools(snapshot: &Snapshot<'_>, placement: &Placement) -> Result<(), Box<Obstacle>> {
    let donor = &placement.donor;
    for (id, part) in &placement.nodes {
        let (Some(node), Some(lent)) = (snapshot.node(donor, id), snapshot.occupancy(donor, id)) else { continue };
        let held = |index: u32, device: &Device| {
            lent.devices.get(&index).copied().unwrap_or(0).saturating_add(device.local_use_milli)
        };
        // On most nodes, no device is counted twice.
        if (0_u32..).zip(&node.devices).all(|(index, device)| held(index, device) <= WHOLE_MILLI) {
            continue;
        }
        let first = part.devices.keys().next().and_then(|index| node.devices.get(usize::try_from(*index).ok()?));
        let Some(first) = first else { continue };
        let (mut free, mut twice) = (0_u64, 0_u64);
        for (index, device) in (0_u32..).zip(&node.devices).filter(|(_, device)| share_pool(first, device)) {
            let held = held(index, device);
            twice += u64::from(held.saturating_sub(WHOLE_MILLI));
            free += if device.healthy { u64::from(WHOLE_MILLI.saturating_sub(held)) } else { 0 };
        }
        let wanted: u64 = part.devices.values().map(|share| u64::from(share.milli)).sum();
        if twice > 0 && free < wanted.saturating_add(twice) {
            return Err(Box::new(obstacle(
                Cure::Waiting,
                "no-capacity",
                format!("local work of {donor} holds devices of node {id} that are counted as free"),
                "wait until leases or local work there end",
            )));
        }
    }
    Ok(())
}

/// A donor's usable nodes without the devices that [`check_pools`] refuses: each pool loses as much free capacity as is
/// counted twice, for local work and for leases.
pub(crate) fn without_double_counted(snapshot: &Snapshot<'_>, donor: &ClusterId) -> Usable {
    let mut nodes = snapshot.state.derived.usable.get(donor).cloned().unwrap_or_default();
    for (id, node, _) in snapshot.nodes(donor) {
        if let Some(less) = snapshot.occupancy(donor, id).and_then(|lent| node_without_double_counted(node, lent)) {
            nodes.insert(id.clone(), less);
        }
    }
    BTreeMap::from([(donor.clone(), nodes)])
}

/// The node without falsely free capacity; `None` if nothing changes.
fn node_without_double_counted(node: &Node, lent: &NodeOccupancy) -> Option<Node> {
    let held = |index: usize, device: &Device| {
        let lent = u32::try_from(index).ok().and_then(|index| lent.devices.get(&index));
        lent.copied().unwrap_or(0).saturating_add(device.local_use_milli)
    };
    let mut less: Option<Node> = None;
    for (at, twice) in node.devices.iter().enumerate() {
        let mut short = u64::from(held(at, twice).saturating_sub(WHOLE_MILLI));
        if short == 0 {
            continue;
        }
        let devices = &mut less.get_or_insert_with(|| node.clone()).devices;
        for (index, device) in devices.iter_mut().enumerate().rev() {
            let free = u64::from(WHOLE_MILLI.saturating_sub(held(index, device)));
            if short > 0 && device.healthy && free > 0 && share_pool(twice, device) {
                device.healthy = false;
                short = short.saturating_sub(free);
            }
        }
    }
    less
}
