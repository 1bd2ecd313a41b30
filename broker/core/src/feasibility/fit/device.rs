//! Computes how many shares one device still holds, and what each takes.

use crate::feasibility::fit::mig_device::cut;
use crate::model::demand::Share;
use crate::model::inventory::{Device, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::state::occupancy::NodeOccupancy;

/// The load under which capacity is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Leases and local work count as they are now.
    Current,
    /// As if nothing were in use.
    Idle,
}

/// The room for shares on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRoom {
    /// Shares that fit now.
    pub(crate) units: u32,
    /// Thousandths that each takes.
    pub(crate) milli_each: u32,
    /// Kubernetes resources that each counts as.
    pub(crate) resources_each: u32,
}

/// The room for `share` on `device`, which has number `index` on its node; `None` if the device can never serve it.
pub(crate) fn room(device: &Device, index: u32, lent: Option<&NodeOccupancy>, share: &Share) -> Option<DeviceRoom> {
    let lent_milli = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
    let free = WHOLE_MILLI.saturating_sub(device.local_use_milli).saturating_sub(lent_milli);
    let (milli_each, resources_each, most) = match &device.sharing {
        Sharing::Exclusive => exclusive(device, share)?,
        Sharing::TimeSlicing { replicas } => sliced(device, *replicas, share)?,
        Sharing::Mps { shares } => sliced(device, *shares, share)?,
        Sharing::Fractional { step_milli } => fractional(device, *step_milli, share)?,
        Sharing::Mig { layout: Some(layout), .. } => {
            let cut = cut(device, share)?;
            if !cut.may_recut() && !layout.instances.keys().any(|&start| cut.exists(start)) {
                return None;
            }
            (cut.board.milli(cut.shape), 1, cut.room(index, lent))
        }
        Sharing::Mig { instances, layout: None } => {
            let Share::MigProfile(profile) = share else { return None };
            let total: u32 = instances.values().fold(0, |sum, count| sum.saturating_add(*count));
            let of_profile = instances.get(profile).copied().filter(|count| *count > 0)?;
            let taken = lent.and_then(|node| node.profiles.get(&(index, profile.clone()))).copied().unwrap_or(0);
            ((WHOLE_MILLI / total.max(1)).max(1), 1, of_profile.saturating_sub(taken))
        }
    };
    let units = if device.healthy { (free / milli_each).min(most) } else { 0 };
    Some(DeviceRoom { units, milli_each, resources_each })
}

/// An exclusive device is lent whole: fractions do not fit, and memory needs a large enough device.
fn exclusive(device: &Device, share: &Share) -> Option<(u32, u32, u32)> {
    let serves = match share {
        Share::Whole | Share::Milli(WHOLE_MILLI) => true,
        Share::MemoryMib(memory) => *memory <= device.memory_mib,
        Share::Milli(_) | Share::MigProfile(_) => false,
    };
    serves.then_some((WHOLE_MILLI, 1, 1))
}

/// A device in equal parts: a share takes as many as cover it.
fn sliced(device: &Device, parts: u32, share: &Share) -> Option<(u32, u32, u32)> {
    let parts = parts.max(1);
    let wanted = match share {
        Share::Whole => parts,
        Share::Milli(milli) => milli.checked_mul(parts)?.div_ceil(WHOLE_MILLI),
        Share::MemoryMib(memory) => {
            let each = (device.memory_mib / u64::from(parts)).max(1);
            u32::try_from(memory.div_ceil(each)).ok()?
        }
        Share::MigProfile(_) => return None,
    };
    // Thousandths do not divide evenly by three; a share of all parts is still the whole device.
    let milli = if wanted == parts { WHOLE_MILLI } else { wanted.checked_mul(WHOLE_MILLI / parts)? };
    (1..=parts).contains(&wanted).then_some((milli, wanted, parts / wanted))
}

/// A device in arbitrary parts, rounded up to its step.
fn fractional(device: &Device, step: u32, share: &Share) -> Option<(u32, u32, u32)> {
    let milli = match share {
        Share::Whole => WHOLE_MILLI,
        Share::Milli(milli) => *milli,
        Share::MemoryMib(memory) => {
            u32::try_from(memory.checked_mul(u64::from(WHOLE_MILLI))?.div_ceil(device.memory_mib.max(1))).ok()?
        }
        Share::MigProfile(_) => return None,
    };
    let milli = milli.checked_next_multiple_of(step.max(1))?.max(1);
    (milli <= WHOLE_MILLI).then_some((milli, 1, WHOLE_MILLI / milli))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn device(sharing: Sharing) -> Device {
        Device {
            product_name: "NVIDIA-A100-SXM4-40GB".into(),
            architecture: "ampere".into(),
            memory_mib: 40_960,
            cuda_compute_capability: "8.0".into(),
            driver_version: "550.107.02".into(),
            sharing,
            healthy: true,
            fault: None,
            local_use_milli: 0,
            resource_name: "nvidia.com/gpu".into(),
            wiring: Default::default(),
        }
    }

    fn units(device: &Device, share: &Share) -> Option<(u32, u32)> {
        room(device, 0, None, share).map(|room| (room.units, room.milli_each))
    }

    #[test]
    fn an_exclusive_device_is_taken_whole_or_not_at_all() {
        let device = device(Sharing::Exclusive);
        assert_eq!(units(&device, &Share::Whole), Some((1, 1000)));
        assert_eq!(units(&device, &Share::Milli(1000)), Some((1, 1000)));
        assert_eq!(units(&device, &Share::Milli(500)), None);
        assert_eq!(units(&device, &Share::MemoryMib(40_960)), Some((1, 1000)));
        assert_eq!(units(&device, &Share::MemoryMib(40_961)), None);
        let used = Device { local_use_milli: 1, ..device };
        assert_eq!(units(&used, &Share::Whole), Some((0, 1000)));
    }

    #[test]
    fn slices_cover_a_share() {
        let device = device(Sharing::TimeSlicing { replicas: 4 });
        assert_eq!(units(&device, &Share::Milli(50)), Some((4, 250)));
        assert_eq!(units(&device, &Share::Milli(251)), Some((2, 500)));
        assert_eq!(units(&device, &Share::Whole), Some((1, 1000)));
        assert_eq!(units(&device, &Share::MemoryMib(10_240)), Some((4, 250)));
        assert_eq!(units(&device, &Share::MemoryMib(40_961)), None);
        let thirds = Device { sharing: Sharing::Mps { shares: 3 }, ..device };
        assert_eq!(units(&thirds, &Share::Milli(333)), Some((3, 333)));
        assert_eq!(units(&thirds, &Share::Whole), Some((1, 1000)));
    }

    #[test]
    fn fractions_round_up_to_the_step() {
        let device = device(Sharing::Fractional { step_milli: 100 });
        assert_eq!(units(&device, &Share::Milli(50)), Some((10, 100)));
        assert_eq!(units(&device, &Share::Milli(301)), Some((2, 400)));
    }

    #[test]
    fn mig_counts_instances_of_the_profile() {
        let instances = BTreeMap::from([("1g.5gb".into(), 3), ("4g.20gb".into(), 1)]);
        let device = device(Sharing::Mig { instances, layout: None });
        assert_eq!(units(&device, &Share::MigProfile("1g.5gb".into())), Some((3, 250)));
        assert_eq!(units(&device, &Share::MigProfile("2g.10gb".into())), None);
        assert_eq!(units(&device, &Share::Whole), None);
    }

    #[test]
    fn an_unhealthy_device_holds_nothing() {
        let sick = Device { healthy: false, ..device(Sharing::Exclusive) };
        assert_eq!(units(&sick, &Share::Whole), Some((0, 1000)));
    }
}
