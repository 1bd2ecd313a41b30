//! Lists the resource kinds and share sizes that a donor's devices offer.

use std::collections::BTreeSet;

use comity_types::ClusterId;

use crate::feasibility::fit::device::room;
use crate::feasibility::fit::{ResourceKind, Wanted};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::Share;

/// The distinct resource kinds of the donor's devices of the class.
pub(crate) fn resource_kinds(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
) -> BTreeSet<ResourceKind> {
    let devices = snapshot.nodes(donor).flat_map(|(_, node, classes)| node.devices.iter().zip(classes));
    let of_class = devices.filter(|(_, class)| class.as_ref() == Some(wanted.class));
    of_class.map(|(device, _)| ResourceKind::of(device, &wanted.gpus.share)).collect()
}

/// The distinct thousandths that one share takes, for fractional shares; otherwise empty.
pub(crate) fn share_sizes(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> BTreeSet<u32> {
    let share = &wanted.gpus.share;
    if !matches!(share, Share::Milli(_)) {
        return BTreeSet::new();
    }
    let devices = snapshot.nodes(donor).flat_map(|(_, node, classes)| node.devices.iter().zip(classes));
    let of_class = devices.filter(|(_, class)| class.as_ref() == Some(wanted.class));
    of_class.filter_map(|(device, _)| room(device, 0, None, share)).map(|room| room.milli_each).collect()
}
