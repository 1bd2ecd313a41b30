//! Devices of one node that local work may hold any of.

use crate::inventory::{Device, Sharing};
use crate::limits::WHOLE_MILLI;
use crate::matcher::verdict::{Obstacle, obstacle};
use crate::matcher::view::View;
use crate::placement::Placement;

/// Whether two devices of a node count as one pool: where slots are known, each device is known by itself.
pub(super) fn pooled(one: &Device, other: &Device) -> bool {
    let known = |device: &Device| matches!(device.sharing, Sharing::Mig { layout: Some(_), .. });
    !known(one)
        && !known(other)
        && one.resource_name == other.resource_name
        && one.product_name == other.product_name
        && one.sharing.as_str() == other.sharing.as_str()
}

/// Whether what is free of a node's devices is free indeed. Where local use is counted on a device that a lease holds, it is
/// another one of its pool that local work has: such a lease would be called back as soon as it is placed.
pub(crate) fn check_pools(view: &View<'_>, placement: &Placement) -> Result<(), Box<Obstacle>> {
    let donor = &placement.donor;
    for (id, part) in &placement.nodes {
        let (Some(node), Some(lent)) = (view.node(donor, id), view.occupancy(donor, id)) else { continue };
        let first = part.devices.keys().next().and_then(|index| node.devices.get(usize::try_from(*index).ok()?));
        let Some(first) = first else { continue };
        let (mut free, mut twice) = (0_u64, 0_u64);
        for (index, device) in (0_u32..).zip(&node.devices).filter(|(_, device)| pooled(first, device)) {
            let held = lent.devices.get(&index).copied().unwrap_or(0).saturating_add(device.local_use_milli);
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
