//! Explains that a donor's devices of the class give no MIG instance of the profile, and names those that they give.

use std::collections::BTreeSet;

use comity_types::ClusterId;

use crate::feasibility::fit::Wanted;
use crate::feasibility::fit::device::room;
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::Share;
use crate::model::inventory::{Device, Sharing};

/// The obstacle, if no device of the class could ever give such an instance.
pub(crate) fn no_such_profile(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Option<Obstacle> {
    let Share::MigProfile(asked) = &wanted.gpus.share else { return None };
    let class = wanted.class;
    let devices = snapshot.nodes(donor).flat_map(|(_, node, classes)| node.devices.iter().zip(classes));
    let mut given = BTreeSet::new();
    for (device, _) in devices.filter(|(_, of)| of.as_ref() == Some(class)) {
        if room(device, 0, None, &wanted.gpus.share).is_some() {
            return None;
        }
        given.extend(profiles(device));
    }
    let given: Vec<String> = given.into_iter().collect();
    let (has, unblock) = if given.is_empty() {
        ("none is in MIG mode".to_owned(), "ask for another class or share".to_owned())
    } else {
        let all = given.join(", ");
        (format!("these have {all}"), format!("ask for one of these profiles ({all}), or for another class"))
    };
    let reason = format!("{donor} has no MIG instance of profile {asked} on devices of class {class}: {has}");
    Some(obstacle(Cure::Change, "no-such-devices", reason, unblock))
}

/// The profiles of which a device gives instances.
fn profiles(device: &Device) -> Vec<String> {
    match &device.sharing {
        Sharing::Mig { layout: Some(layout), .. } if layout.repartition => {
            device.board().map_or_else(Vec::new, |board| board.names())
        }
        Sharing::Mig { instances, .. } => {
            instances.iter().filter(|(_, count)| **count > 0).map(|(profile, _)| profile.clone()).collect()
        }
        Sharing::Exclusive | Sharing::TimeSlicing { .. } | Sharing::Mps { .. } | Sharing::Fractional { .. } => {
            Vec::new()
        }
    }
}
