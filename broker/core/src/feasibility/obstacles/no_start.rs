//! Explains why no MIG instance can start anywhere at a donor, and gives a remedy.

use std::collections::BTreeMap;

use comity_types::{ClassName, ClusterId, NodeId};

use crate::feasibility::fit::Wanted;
use crate::feasibility::fit::mig_device::{Cut, cut, in_use};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::Share;
use crate::model::inventory::{Device, Sharing};
use crate::model::mig::{Board, Slots};

/// An instance in use. Its tenant stays private.
struct UsedInstance {
    profile: String,
    start: u8,
    slots: Slots,
    media: bool,
    local: bool,
}

/// The start that is nearest to being free.
struct Nearest {
    /// Number of instances that must end first.
    count: usize,
    /// A description of these instances and their slots.
    held: String,
    local: bool,
}

/// Reason and remedy if slots are short: no suitable device has a free start. Only for requested profiles, and only
/// where none is lent by number; otherwise the request could be served in other ways.
pub(crate) fn no_start(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Option<(String, String)> {
    let Share::MigProfile(asked) = &wanted.gpus.share else { return None };
    let lent = lent(snapshot, donor);
    let (mut devices, mut closed, mut profile) = (0_u32, 0_u32, String::new());
    let mut nearest: Option<Nearest> = None;
    for (id, node, classes) in snapshot.nodes(donor).filter(|(_, node, _)| node.schedulable) {
        for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
            if matches!(&device.sharing, Sharing::Mig { instances, layout: None } if instances.contains_key(asked)) {
                return None;
            }
            let Some(cut) = asked_for(device, class.as_ref(), wanted) else { continue };
            devices += 1;
            profile = crate::feasibility::fit::mig_device::profile(device, &wanted.gpus.share)?;
            if !cut.starts(index, snapshot.occupancy(donor, id)).is_empty() {
                return None;
            }
            if in_use(device, index, snapshot.occupancy(donor, id)).is_none() {
                closed += 1;
                continue;
            }
            let mut held = local(device, cut.board);
            for (profile, share) in lent.get(&(id, index)).into_iter().flatten() {
                held.extend(leased(cut.board, profile, share));
            }
            let blockers = starts(&cut)
                .filter_map(|start| blockers_at(&cut, start, &held, id, index))
                .min_by_key(|blockers| blockers.count);
            if blockers
                .as_ref()
                .is_some_and(|blockers| nearest.as_ref().is_none_or(|nearest| blockers.count < nearest.count))
            {
                nearest = blockers;
            }
        }
    }
    if devices == 0 {
        return None;
    }
    let noun = if devices == 1 { "device" } else { "devices" };
    let mut reason = format!("{donor} has no free start for {profile} on {devices} {noun} of class {}", wanted.class);
    if closed > 0 {
        reason += &format!("; {closed} of them can give nothing now: not healthy, held back, or lent by number");
    }
    let Some(nearest) = nearest else {
        return Some((reason, "wait until a device can be lent of again".to_owned()));
    };
    reason += &format!("; nearest is {}", nearest.held);
    let whose = if nearest.local { "; the donor's own work holds some of that" } else { "" };
    let remedy = match nearest.count {
        1 => format!("wait until that instance is given back{whose}"),
        count => format!("wait until those {count} instances are given back{whose}"),
    };
    Some((reason, remedy))
}

fn asked_for<'d>(device: &'d Device, class: Option<&ClassName>, wanted: &Wanted<'_>) -> Option<Cut<'d>> {
    let selected = wanted.selector.is_none_or(|selector| selector.matches(&device.facts()));
    let cut = cut(device, &wanted.gpus.share).filter(|_| class == Some(wanted.class) && selected)?;
    starts(&cut).next().is_some().then_some(cut)
}

/// Permitted starts on an idle device.
fn starts<'c>(cut: &'c Cut<'_>) -> impl Iterator<Item = u8> + 'c {
    cut.shape.starts.iter().copied().filter(|&start| cut.may_recut() || cut.exists(start))
}

/// Profile and share of each lease, by node and device.
type LeasedInstances<'a> = BTreeMap<(&'a NodeId, u32), Vec<(&'a str, &'a crate::model::placement::DeviceShare)>>;

fn lent<'a>(snapshot: &Snapshot<'a>, donor: &ClusterId) -> LeasedInstances<'a> {
    let mut lent: LeasedInstances<'a> = BTreeMap::new();
    for (_, lease) in snapshot.state.leases_of(donor).filter(|(_, lease)| lease.occupies()) {
        let placement = &lease.placement;
        let Some(profile) = placement.profile.as_deref().filter(|_| placement.donor == *donor) else { continue };
        for (id, part) in &placement.nodes {
            for (&index, share) in &part.devices {
                lent.entry((id, index)).or_default().push((profile, share));
            }
        }
    }
    lent
}

fn leased(board: Board, profile: &str, share: &crate::model::placement::DeviceShare) -> Vec<UsedInstance> {
    let Some((_, shape)) = board.shape(profile) else { return Vec::new() };
    let held = |start: u8| UsedInstance {
        profile: profile.to_owned(),
        start,
        slots: Slots::span(start, shape.size),
        media: shape.media,
        local: false,
    };
    share.starts().into_iter().map(held).collect()
}

fn local(device: &Device, board: Board) -> Vec<UsedInstance> {
    let Sharing::Mig { layout: Some(layout), .. } = &device.sharing else { return Vec::new() };
    let local = layout.instances.iter().filter(|(_, instance)| instance.local);
    let held = local.filter_map(|(&start, instance)| {
        let (_, shape) = board.shape(&instance.profile)?;
        let slots = Slots::span(start, shape.size);
        Some(UsedInstance { profile: instance.profile.clone(), start, slots, media: shape.media, local: true })
    });
    held.collect()
}

/// The instances that block a start at `start`; `None` if it is free.
fn blockers_at(cut: &Cut<'_>, start: u8, held: &[UsedInstance], id: &NodeId, index: u32) -> Option<Nearest> {
    let span = cut.shape.at(start)?;
    let in_the_way = |held: &&UsedInstance| held.slots.overlaps(span) || (held.media && cut.shape.media);
    let blockers: Vec<&UsedInstance> = held.iter().filter(in_the_way).collect();
    let words = blockers.iter().map(|held| {
        let whose = if held.local { "local work" } else { "a lease" };
        format!("{} at {} of {whose}", held.profile, held.start)
    });
    let words: Vec<String> = words.collect();
    let last = start + cut.shape.size - 1;
    let slots = if last == start { format!("slot {start}") } else { format!("slots {start}-{last}") };
    (!blockers.is_empty()).then(|| Nearest {
        count: blockers.len(),
        held: format!("{slots} of device {index} of node {id}, taken by {}", words.join(" and ")),
        local: blockers.iter().any(|held| held.local),
    })
}
