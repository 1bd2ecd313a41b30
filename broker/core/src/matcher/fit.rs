//! Fitting a demand on the nodes of one donor.

use std::collections::{BTreeMap, BTreeSet};

use super::device::room;
use super::view::View;
use crate::demand::{GpuDemand, Share, Topology};
use crate::id::{ClassName, ClusterId, NodeId};
use crate::inventory::{Node, Sharing};
use crate::placement::{DeviceShare, NodePlacement, Placement};

/// A node with room for the demand.
struct Candidate<'a> {
    id: &'a NodeId,
    node: &'a Node,
    /// Shares it holds now, over devices, CPU and memory.
    units: u32,
}

/// How far a demand fits.
pub(super) enum Fit {
    /// Here is the witness.
    Fits {
        /// Where.
        placement: Placement,
        /// Thousandths of devices that it strands.
        waste_milli: i64,
    },
    /// Not now.
    Lacks {
        /// Shares that would fit now, under the same topology.
        now: u64,
        /// Shares that would fit if nothing were in use.
        ever: u64,
    },
}

/// What is fitted: devices of one class, and for a selector only those in `selected`.
pub(super) struct Wanted<'a> {
    pub(super) class: &'a ClassName,
    pub(super) gpus: &'a GpuDemand,
    pub(super) topology: Topology,
    /// `None`: all devices of the class.
    pub(super) selector: Option<&'a comity_policy::Selector>,
}

/// Fits `wanted` on `donor`. One placement uses one Kubernetes resource name; names are tried in order.
pub(super) fn fit(view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
    let names: BTreeSet<String> = view
        .nodes(donor)
        .flat_map(|(_, node, classes)| node.devices.iter().zip(classes))
        .filter(|(_, class)| class.as_ref() == Some(wanted.class))
        .map(|(device, _)| resource_name(&device.resource_name, &device.sharing, &wanted.gpus.share))
        .collect();
    let (mut now, mut ever) = (0, 0);
    for name in &names {
        match fit_resource(view, donor, wanted, name) {
            fits @ Fit::Fits { .. } => return fits,
            Fit::Lacks { now: n, ever: e } => (now, ever) = (now.max(n), ever.max(e)),
        }
    }
    Fit::Lacks { now, ever }
}

/// The Kubernetes resource that shares of this kind are counted by: with MIG's mixed strategy each profile has its own.
pub(super) fn resource_name(device: &str, sharing: &Sharing, share: &Share) -> String {
    match (sharing, share) {
        (Sharing::Mig { .. }, Share::MigProfile(profile)) if device.ends_with("/mig") => {
            format!("{device}-{}", profile.replace('+', "."))
        }
        _ => device.to_owned(),
    }
}

fn fit_resource(view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>, name: &str) -> Fit {
    let count = wanted.gpus.count;
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    let (mut now, mut ever, mut most_now, mut most_ever) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (id, node, classes) in view.nodes(donor) {
        let free = node_units(view, donor, (id, node, classes), wanted, name, true);
        let empty = node_units(view, donor, (id, node, classes), wanted, name, false);
        now += u64::from(free);
        ever += u64::from(empty);
        most_now = most_now.max(u64::from(free));
        most_ever = most_ever.max(u64::from(empty));
        if free > 0 {
            candidates.push(Candidate { id, node, units: free });
        }
    }
    if wanted.topology.same_node {
        (now, ever) = (most_now, most_ever);
    }
    let chosen = choose(candidates, count, wanted.topology);
    if chosen.is_empty() {
        // Whole nodes may hold enough shares in sum and yet not divide into exactly what is asked.
        return Fit::Lacks { now, ever };
    }
    let placement = lay_out(view, donor, wanted, name, &chosen);
    let waste_milli = i64::try_from(stranded(view, &placement)).unwrap_or(i64::MAX);
    Fit::Fits { placement, waste_milli }
}

/// What stays free on the devices that the placement uses in part.
fn stranded(view: &View<'_>, placement: &Placement) -> u64 {
    let mut stranded = 0;
    for (id, part) in &placement.nodes {
        let lent = view.occupancy(&placement.donor, id);
        for (index, share) in &part.devices {
            let lent = lent.and_then(|node| node.devices.get(index)).copied().unwrap_or(0);
            stranded += u64::from(crate::limits::WHOLE_MILLI.saturating_sub(lent).saturating_sub(share.milli));
        }
    }
    stranded
}

/// Nodes to use: the one that is left with least, or else as few as possible; with `whole_node` only nodes used up exactly.
fn choose(mut candidates: Vec<Candidate<'_>>, count: u32, topology: Topology) -> Vec<Candidate<'_>> {
    if !topology.whole_node
        && let Some(best) = (0..candidates.len())
            .filter(|&i| candidates[i].units >= count)
            .min_by_key(|&i| (candidates[i].units, candidates[i].id))
    {
        return vec![candidates.swap_remove(best)];
    }
    if topology.whole_node
        && let Some(best) =
            (0..candidates.len()).filter(|&i| candidates[i].units == count).min_by_key(|&i| candidates[i].id)
    {
        return vec![candidates.swap_remove(best)];
    }
    if topology.same_node {
        return Vec::new();
    }
    candidates.sort_by(|a, b| b.units.cmp(&a.units).then(a.id.cmp(b.id)));
    let (mut left, mut chosen) = (count, Vec::new());
    for candidate in candidates {
        if left == 0 {
            break;
        }
        if topology.whole_node && candidate.units > left {
            continue;
        }
        left -= candidate.units.min(left);
        chosen.push(candidate);
    }
    if left == 0 { chosen } else { Vec::new() }
}

/// Shares that fit on a node: by devices, CPU and memory. With `whole_node` a node counts only if all of it is free and wanted.
fn node_units(
    view: &View<'_>,
    donor: &ClusterId,
    (id, node, classes): (&NodeId, &Node, &[Option<ClassName>]),
    wanted: &Wanted<'_>,
    name: &str,
    as_it_is: bool,
) -> u32 {
    if as_it_is && !node.schedulable {
        return 0;
    }
    let lent = view.occupancy(donor, id).filter(|_| as_it_is);
    let mut units = 0_u32;
    for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
        let found = serves(device, class.as_ref(), wanted, name)
            .then(|| {
                let cleared = crate::inventory::Device { local_use_milli: 0, healthy: true, ..device.clone() };
                room(if as_it_is { device } else { &cleared }, index, lent, &wanted.gpus.share)
            })
            .flatten();
        let here = found.map_or(0, |room| room.units);
        if wanted.topology.whole_node && (here == 0 || used(lent, index) || (as_it_is && device.local_use_milli > 0)) {
            return 0;
        }
        units = units.saturating_add(here);
    }
    let (cpu, memory) = free_cpu_and_memory(node, lent, as_it_is);
    units.min(parts(cpu, wanted.gpus.cpu_milli_per_gpu)).min(parts(memory, wanted.gpus.memory_mib_per_gpu))
}

fn used(lent: Option<&crate::occupancy::NodeOccupancy>, index: u32) -> bool {
    lent.is_some_and(|node| node.devices.contains_key(&index))
}

/// Free CPU in thousandths of a core and memory in MiB.
pub(super) fn free_cpu_and_memory(
    node: &Node,
    lent: Option<&crate::occupancy::NodeOccupancy>,
    as_it_is: bool,
) -> (u64, u64) {
    if !as_it_is {
        return (node.cpu_milli, node.memory_mib);
    }
    let (cpu, memory) = lent.map_or((0, 0), |node| (node.cpu_milli, node.memory_mib));
    (
        node.cpu_milli.saturating_sub(node.local_cpu_milli).saturating_sub(cpu),
        node.memory_mib.saturating_sub(node.local_memory_mib).saturating_sub(memory),
    )
}

fn parts(whole: u64, part: u64) -> u32 {
    whole.checked_div(part).map_or(u32::MAX, |parts| u32::try_from(parts).unwrap_or(u32::MAX))
}

/// Whether a device is one of those asked for.
pub(super) fn serves(
    device: &crate::inventory::Device,
    class: Option<&ClassName>,
    wanted: &Wanted<'_>,
    name: &str,
) -> bool {
    class == Some(wanted.class)
        && resource_name(&device.resource_name, &device.sharing, &wanted.gpus.share) == name
        && wanted.selector.is_none_or(|selector| selector.matches(&device.facts()))
}

/// Spreads the shares over the chosen nodes; on each, devices already in part use come first, so that whole ones stay whole.
fn lay_out(view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>, name: &str, chosen: &[Candidate<'_>]) -> Placement {
    let mut left = wanted.gpus.count;
    let mut nodes = BTreeMap::new();
    let mut resource_count = 0_u64;
    for candidate in chosen {
        let lent = view.occupancy(donor, candidate.id);
        let classes = view.state.device_classes(donor, candidate.id);
        let mut rooms: Vec<(u32, u32, super::device::DeviceRoom)> = (0_u32..)
            .zip(candidate.node.devices.iter().zip(classes))
            .filter(|(_, (device, class))| serves(device, class.as_ref(), wanted, name))
            .filter_map(|(index, (device, _))| {
                let room = room(device, index, lent, &wanted.gpus.share)?;
                let lent = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
                (room.units > 0).then_some((u32::MAX - lent - device.local_use_milli, index, room))
            })
            .collect();
        rooms.sort_by_key(|(rank, index, _)| (*rank, *index));
        let mut here = candidate.units.min(left);
        left -= here;
        let mut part = NodePlacement {
            devices: BTreeMap::new(),
            cpu_milli: wanted.gpus.cpu_milli_per_gpu.saturating_mul(u64::from(here)),
            memory_mib: wanted.gpus.memory_mib_per_gpu.saturating_mul(u64::from(here)),
        };
        for (_, index, room) in rooms {
            let units = room.units.min(here);
            if units == 0 {
                break;
            }
            here -= units;
            resource_count += u64::from(units) * u64::from(room.resources_each);
            part.devices.insert(index, DeviceShare { milli: units * room.milli_each, units });
        }
        nodes.insert(candidate.id.clone(), part);
    }
    let offer_generation =
        view.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()).map_or(0, |offer| offer.generation);
    let profile = match &wanted.gpus.share {
        Share::MigProfile(profile) => Some(profile.clone()),
        Share::Whole | Share::Milli(_) | Share::MemoryMib(_) => None,
    };
    Placement { donor: donor.clone(), nodes, offer_generation, resource_name: name.to_owned(), resource_count, profile }
}
