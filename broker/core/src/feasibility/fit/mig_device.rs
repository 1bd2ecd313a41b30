//! MIG devices with known slots: their usage, and the free starts for another instance.

use crate::model::demand::Share;
use crate::model::inventory::{Device, MigLayout, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::model::mig::{Board, InUse, InstanceShape, Slots};
use crate::state::occupancy::NodeOccupancy;

/// A share expressed as an instance shape of the device's board.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    pub(crate) board: Board,
    /// Index of the shape on its board.
    pub(crate) shape_index: usize,
    pub(crate) shape: &'static InstanceShape,
    layout: &'a MigLayout,
    device: &'a Device,
}

/// Expresses a share as an instance; `None` if the device's slots are unknown, or if no shape matches.
///
/// Memory becomes the smallest instance that is sure to have it. Whole devices and thousandths have no instance: to get
/// all of a device in MIG mode, request its largest profile.
pub(crate) fn cut<'a>(device: &'a Device, share: &Share) -> Option<Cut<'a>> {
    let Sharing::Mig { layout: Some(layout), .. } = &device.sharing else { return None };
    let board = device.board()?;
    let (shape_index, shape) = match share {
        Share::MigProfile(profile) => board.shape(profile)?,
        Share::MemoryMib(memory) => board.shape_with_memory(device.memory_mib, *memory)?,
        Share::Whole | Share::Milli(_) => return None,
    };
    Some(Cut { board, shape_index, shape, layout, device })
}

/// The profile of a share, by the device's name for it; `None` if the share is no instance.
pub(crate) fn profile(device: &Device, share: &Share) -> Option<String> {
    let Sharing::Mig { instances, layout } = &device.sharing else { return None };
    if layout.is_none() {
        let Share::MigProfile(profile) = share else { return None };
        return Some(profile.clone());
    }
    let cut = cut(device, share)?;
    let reported = instances
        .keys()
        .find(|name| cut.board.shape(name).is_some_and(|(shape_index, _)| shape_index == cut.shape_index));
    Some(reported.cloned().unwrap_or_else(|| cut.board.name(cut.shape)))
}

impl Cut<'_> {
    /// Whether the device may be re-cut on demand.
    pub(crate) fn may_recut(&self) -> bool {
        self.layout.repartition
    }

    /// Whether an instance of this shape exists at `start`.
    pub(crate) fn exists(&self, start: u8) -> bool {
        let existing = self.layout.instances.get(&start);
        existing
            .and_then(|instance| self.board.shape(&instance.profile))
            .is_some_and(|(shape_index, _)| shape_index == self.shape_index)
    }

    /// Free starts for another instance, in the shape's order.
    pub(crate) fn starts(&self, index: u32, lent: Option<&NodeOccupancy>) -> Vec<u8> {
        let Some(in_use) = in_use(self.device, index, lent) else { return Vec::new() };
        in_use.starts(self.shape).filter(|&start| self.layout.repartition || self.exists(start)).collect()
    }

    /// Number of instances that still fit.
    pub(crate) fn room(&self, index: u32, lent: Option<&NodeOccupancy>) -> u32 {
        let starts = u32::try_from(self.starts(index, lent).len()).unwrap_or(u32::MAX);
        if self.shape.media { starts.min(1) } else { starts }
    }
}

/// The slots of the next `units` instances, lowest start first; none if slots are unknown.
pub(crate) fn first_slots(
    device: &Device,
    index: u32,
    lent: Option<&NodeOccupancy>,
    share: &Share,
    units: u32,
) -> Slots {
    let Some(cut) = cut(device, share) else { return Slots::NONE };
    let mut starts = cut.starts(index, lent);
    starts.sort_unstable();
    let spans = starts.into_iter().take(usize::try_from(units).unwrap_or(usize::MAX));
    spans.fold(Slots::NONE, |all, start| all.with(Slots::span(start, cut.shape.size)))
}

/// The usage of device number `index` by leases and local work. `None` if the device can lend nothing more: it is
/// unhealthy, held back, or partly lent by number from before its slots were known.
pub(crate) fn in_use(device: &Device, index: u32, lent: Option<&NodeOccupancy>) -> Option<InUse> {
    let Sharing::Mig { layout: Some(layout), .. } = &device.sharing else { return None };
    let board = device.board()?;
    let lent_milli = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
    let lent_slots = lent.and_then(|node| node.slots.get(&index)).copied().unwrap_or(Slots::NONE);
    let by_slots = lent_slots.count() * WHOLE_MILLI / u32::from(board.slots());
    if !device.healthy || device.local_use_milli >= WHOLE_MILLI || lent_milli != by_slots {
        return None;
    }
    let lends_media = lent.is_some_and(|node| {
        let of_device = |((device, profile), _): (&(u32, String), &u32)| *device == index && is_media(board, profile);
        node.profiles.iter().any(of_device)
    });
    let lent = InUse { slots: lent_slots, media: lends_media };
    Some(layout.instances.iter().filter(|(_, instance)| instance.local).fold(lent, |in_use, (&start, instance)| {
        board.shape(&instance.profile).map_or(in_use, |(_, shape)| in_use.with(shape, start))
    }))
}

fn is_media(board: Board, profile: &str) -> bool {
    board.shape(profile).is_some_and(|(_, shape)| shape.media)
}
