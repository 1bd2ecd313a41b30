//! Devices of one node that local work may hold any of.

use std::collections::BTreeMap;

use crate::id::ClusterId;
use crate::inventory::{Device, Node, Sharing};
use crate::limits::WHOLE_MILLI;
use crate::occupancy::NodeOccupancy;
use crate::placement::Placement;
use crate::scheduler::verdict::{Obstacle, obstacle};
use crate::scheduler::view::View;
use crate::usable::Usable;

/// Whether two devices of a node count as one pool: where slots are known, each device is known by itself.
pub(super) fn pooled(one: &Device, other: &Device) -> bool {
    let known = |device: &Device| matches!(device.sharing, Sharing::Mig { layout: Some(_), .. });
    !known(one)
        && !known(other)
        && one.resource_name == other.resource_name
        && one.product_name == other.product_name
        && one.sharing.as_str() == other.sharing.as_str()
}

/// Whether what is free of a node's devices is free indeed. Where local use is counted on a device that a lease holds,
/// it is another one of its pool that local work has: such a lease would be reclaimed as soon as it is placed.
pub(crate) fn check_pools(view: &View<'_>, placement: &Placement) -> Result<(), Box<Obstacle>> {
    let donor = &placement.donor;
    for (id, part) in &placement.nodes {
        let (Some(node), Some(lent)) = (view.node(donor, id), view.occupancy(donor, id)) else { continue };
        let held = |index: u32, device: &Device| {
            lent.devices.get(&index).copied().unwrap_or(0).saturating_add(device.local_use_milli)
        };
        // On most nodes nothing is counted twice, of whatever pool.
        if (0_u32..).zip(&node.devices).all(|(index, device)| held(index, device) <= WHOLE_MILLI) {
            continue;
        }
        let first = part.devices.keys().next().and_then(|index| node.devices.get(usize::try_from(*index).ok()?));
        let Some(first) = first else { continue };
        let (mut free, mut twice) = (0_u64, 0_u64);
        for (index, device) in (0_u32..).zip(&node.devices).filter(|(_, device)| pooled(first, device)) {
            let held = held(index, device);
            twice += u64::from(held.saturating_sub(WHOLE_MILLI));
            free += if device.healthy { u64::from(WHOLE_MILLI.saturating_sub(held)) } else { 0 };
        }
        let wanted: u64 = part.devices.values().map(|share| u64::from(share.milli)).sum();
        if twice > 0 && free < wanted.saturating_add(twice) {
            return Err(Box::new(obstacle(
                "no-capacity",
                format!("local work of {donor} holds devices of node {id} that are counted as free"),
                "wait until leases or local work there end",
            )));
        }
    }
    Ok(())
}

/// A donor's nodes as they may be used, without the devices that [`check_pools`] would not let anybody have: of each
/// pool as much of what is counted as free is left out as local work and leases are both counted on.
pub(crate) fn really_free(view: &View<'_>, donor: &ClusterId) -> Usable {
    let mut nodes = view.state.derived.usable.get(donor).cloned().unwrap_or_default();
    for (id, node, _) in view.nodes(donor) {
        if let Some(less) = view.occupancy(donor, id).and_then(|lent| less_of(node, lent)) {
            nodes.insert(id.clone(), less);
        }
    }
    BTreeMap::from([(donor.clone(), nodes)])
}

/// A node without what is counted as free and is not; `None` if all of it is.
fn less_of(node: &Node, lent: &NodeOccupancy) -> Option<Node> {
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
            if short > 0 && device.healthy && free > 0 && pooled(twice, device) {
                device.healthy = false;
                short = short.saturating_sub(free);
            }
        }
    }
    less
}
