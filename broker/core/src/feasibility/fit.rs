//! Fits a demand on the nodes of one donor.

pub(crate) mod bandwidth;
pub(crate) mod cutting;
pub(crate) mod device;
pub(crate) mod mig_device;
pub(crate) mod nodes;
pub(crate) mod resource_kinds;
pub(crate) mod wired;

use std::collections::BTreeSet;

use comity_policy::NvLinkSharing;
use comity_types::{ClassName, ClusterId, NodeId};
use litemap::LiteMap;

use crate::feasibility::fit::cutting::{CutLayout, Cutting, MigValues};
use crate::feasibility::fit::device::{Load, room};
use crate::feasibility::fit::nodes::{ChosenNodes, NodeRoom, choose_nodes, total_room};
use crate::feasibility::fit::resource_kinds::{resource_kinds, share_sizes};
use crate::feasibility::fit::wired::{NodeLayout, WiredNode, in_idle_clique, needs_wired_node};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{GpuDemand, GpuType, Members, NvLink, Share, Topology};
use crate::model::inventory::{Device, Node};
use crate::model::placement::{DeviceShare, NodePlacement, Placement};
use crate::state::occupancy::NodeOccupancy;

/// The result of fitting a demand.
pub(crate) enum Fit {
    /// The demand fits.
    Fits {
        /// A placement that fits.
        placement: Placement,
        /// Thousandths of devices that the placement strands.
        waste_milli: i64,
    },
    /// The demand does not fit now.
    Lacks {
        /// Shares that would fit now, under the same topology.
        now: u64,
        /// Shares that would fit if nothing were in use.
        ever: u64,
    },
}

/// The demand to fit: devices of one class, restricted by an optional selector.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) class: &'a ClassName,
    pub(crate) gpus: &'a GpuDemand,
    pub(crate) topology: Topology,
    pub(crate) members: Option<Members>,
    /// `None` admits all devices of the class.
    pub(crate) selector: Option<&'a comity_policy::Selector>,
    /// Upper bound on the thousandths of a device that one share takes; `None` for no bound.
    pub(crate) most_milli: Option<u32>,
    /// Whether `NvLink::Required` is met by devices that NVLink joins, even if pods may get others.
    pub(crate) unenforced_nvlink: bool,
}

impl Wanted<'_> {
    /// Applies the donor's terms, which may require whole nodes for devices connected by NVLink.
    pub(crate) fn under_terms(mut self, snapshot: &Snapshot<'_>, donor: &ClusterId) -> Self {
        let terms = snapshot.bundle.clusters.get(donor.as_str()).map(|terms| &terms.spec.node_sharing);
        if self.topology.nvlink == NvLink::Required
            && self.gpus.count > 1
            && terms.is_some_and(|terms| terms.nvlink == NvLinkSharing::WholeNodes)
        {
            self.topology.whole_node = true;
        }
        self
    }

    /// Largest acceptable number of shares.
    fn most(&self) -> u32 {
        self.gpus.count.saturating_mul(self.members.map_or(1, |members| members.desired))
    }

    /// Shares that must stay together on a node: those of a member, else one.
    fn piece(&self) -> u32 {
        if self.members.is_some() { self.gpus.count.max(1) } else { 1 }
    }

    /// Acceptable numbers of shares within `room`, largest first.
    fn share_counts(&self, room: u64) -> impl Iterator<Item = u32> {
        let (count, members) = (self.gpus.count, self.members.unwrap_or(Members { min: 1, desired: 1 }));
        let within = u32::try_from(room / u64::from(count.max(1))).unwrap_or(u32::MAX);
        (members.min..=members.desired.min(within)).rev().map(move |members| members.saturating_mul(count))
    }
}

/// The Kubernetes resource that counts the shares of a placement; a placement uses only one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceKind {
    /// Resource name. With MIG's mixed strategy, each profile has its own.
    pub(crate) resource: String,
    /// MIG profile, if the shares are MIG instances.
    pub(crate) profile: Option<String>,
}

impl ResourceKind {
    pub(crate) fn of(device: &Device, share: &Share) -> Self {
        let profile = mig_device::profile(device, share);
        let resource = match &profile {
            Some(profile) if device.resource_name.ends_with("/mig") => {
                format!("{}-{}", device.resource_name, profile.replace('+', "."))
            }
            _ => device.resource_name.clone(),
        };
        Self { resource, profile }
    }
}

/// Fits `wanted` on `donor`. If NVLink is preferred, tries connected devices first.
pub(crate) fn fit(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>, mig_values: &mut MigValues) -> Fit {
    if wanted.topology.nvlink == NvLink::Preferred {
        let topology = Topology { nvlink: NvLink::Required, ..wanted.topology };
        let joined = Wanted { topology, unenforced_nvlink: true, ..*wanted };
        let found = fit_any_way(snapshot, donor, &joined.under_terms(snapshot, donor), mig_values);
        if matches!(found, Fit::Fits { .. }) {
            return found;
        }
    }
    fit_any_way(snapshot, donor, &wanted.under_terms(snapshot, donor), mig_values)
}

/// Tries each resource kind in order. Kinds round a requested memory size or fraction differently: for memory, the
/// smallest result wins; for fractions, kinds with the least excess are tried first.
fn fit_any_way(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>, mig_values: &mut MigValues) -> Fit {
    let resource_kinds = resource_kinds(snapshot, donor, wanted);
    // A gang gets as many members as possible, whatever the excess.
    let mut sizes = if wanted.members.is_none() { share_sizes(snapshot, donor, wanted) } else { BTreeSet::new() };
    sizes.pop_last();
    for most in sizes {
        let smaller = Wanted { most_milli: Some(most), ..*wanted };
        let mut fits = resource_kinds.iter().map(|kind| fit_counted(snapshot, donor, &smaller, kind, mig_values));
        if let Some(found) = fits.find(|found| matches!(found, Fit::Fits { .. })) {
            return found;
        }
    }
    let mut best = Fit::Lacks { now: 0, ever: 0 };
    for kind in &resource_kinds {
        best = best.or_smaller(fit_counted(snapshot, donor, wanted, kind, mig_values));
        if matches!(best, Fit::Fits { .. }) && !matches!(wanted.gpus.share, Share::MemoryMib(_)) {
            break;
        }
    }
    best
}

/// The shares that each suitable node would hold if idle, for the resource kind that yields most.
pub(crate) fn idle_units(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Vec<u32> {
    let counted = |kind: ResourceKind| {
        let nodes = snapshot.nodes(donor);
        let units = nodes.map(|(_, node, classes)| node_units(node, classes, None, wanted, &kind, Load::Idle));
        units.filter(|units| *units > 0).collect::<Vec<u32>>()
    };
    let all = |units: &Vec<u32>| units.iter().map(|units| u64::from(*units)).sum::<u64>();
    resource_kinds(snapshot, donor, wanted).into_iter().map(counted).max_by_key(all).unwrap_or_default()
}

impl Fit {
    /// The better of two results: one that fits with less capacity; otherwise the maximum of each count.
    pub(crate) fn or_smaller(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Fits { placement: first, .. }, Self::Fits { placement: second, .. }) => {
                if second.milli() < first.milli() { other } else { self }
            }
            (Self::Fits { .. }, Self::Lacks { .. }) => self,
            (Self::Lacks { .. }, Self::Fits { .. }) => other,
            (Self::Lacks { now, ever }, Self::Lacks { now: other_now, ever: other_ever }) => {
                Self::Lacks { now: *now.max(other_now), ever: *ever.max(other_ever) }
            }
        }
    }
}

fn fit_counted(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    mig_values: &mut MigValues,
) -> Fit {
    let mut candidates: Vec<NodeRoom<'_>> = Vec::new();
    for (id, node, classes) in snapshot.nodes(donor) {
        let lent = snapshot.occupancy(donor, id);
        let units = node_units(node, classes, lent, wanted, kind, Load::Current);
        if units > 0 {
            candidates.push(NodeRoom { id, node, lent, units });
        }
    }
    let rooms = candidates.iter().map(|candidate| (candidate.node, candidate.lent, candidate.units));
    let now = total_room(rooms, wanted.topology, Load::Current);
    // Cutting considers neither members nor NUMA nodes.
    let cutting =
        if needs_wired_node(wanted) { None } else { Cutting::begin(snapshot, donor, wanted, kind, mig_values) };
    let fits = match cutting {
        Some(cutting) => fit_with_cutting(snapshot, donor, wanted, kind, &candidates, cutting),
        None => fit_uncut(snapshot, donor, wanted, kind, &candidates, now),
    };
    fits.unwrap_or_else(|| {
        let idle = snapshot
            .nodes(donor)
            .map(|(_, node, classes)| (node, None, node_units(node, classes, None, wanted, kind, Load::Idle)));
        Fit::Lacks { now, ever: total_room(idle, wanted.topology, Load::Idle) }
    })
}

/// Fits on devices without re-cutting them. Whole nodes may hold enough shares in total and yet not add up to the exact
/// number.
fn fit_uncut(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    candidates: &[NodeRoom<'_>],
    now: u64,
) -> Option<Fit> {
    let of_size = |count| choose_nodes(candidates, count, wanted.piece(), wanted.topology);
    let chosen = wanted.share_counts(now).find_map(of_size)?;
    let placement = lay_out(snapshot, donor, wanted, kind, &chosen)?;
    let waste_milli = i64::try_from(stranded_milli(snapshot, &placement)).unwrap_or(i64::MAX);
    Some(Fit::Fits { placement, waste_milli })
}

/// Fits where devices may be re-cut: on the one node that loses least by it, or else on as few nodes as possible.
fn fit_with_cutting(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    candidates: &[NodeRoom<'_>],
    mut cutting: Cutting<'_, '_>,
) -> Option<Fit> {
    let count = wanted.gpus.count;
    let mut tried = BTreeSet::new();
    let mut best: Option<((cutting::CutCost, &NodeId), &Node, CutLayout)> = None;
    let one_will_do = !(wanted.topology.whole_node || wanted.topology.spread_nodes && count > 1);
    for candidate in candidates.iter().filter(|candidate| candidate.units >= count && one_will_do) {
        if tried.insert(cutting.signature(candidate.id, candidate.node)) {
            let laid = cutting.simulate(candidate.id, candidate.node, count);
            let rank = (laid.cost, candidate.id);
            if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                best = Some((rank, candidate.node, laid));
            }
        }
    }
    let (mut parts, mut network) = (Vec::new(), None);
    if let Some(((_, id), _, laid)) = best {
        parts.push((id, count, laid));
    } else {
        let chosen = choose_nodes(candidates, count, wanted.piece(), wanted.topology)?;
        network = chosen.network;
        for (candidate, here) in chosen.nodes {
            parts.push((candidate.id, here, cutting.lay_out(candidate.id, candidate.node, here)));
        }
    }
    if parts.is_empty() {
        return None;
    }
    let waste_milli = parts.iter().map(|(_, _, laid)| laid.waste_milli).sum();
    let resource_count = parts.iter().map(|(_, _, laid)| laid.resources).sum();
    let nodes = parts.into_iter().map(|(id, here, laid)| {
        let mut part = NodePlacement {
            devices: laid.devices,
            cpu_milli: wanted.gpus.cpu_milli_per_gpu.saturating_mul(u64::from(here)),
            memory_mib: wanted.gpus.memory_mib_per_gpu.saturating_mul(u64::from(here)),
            ..NodePlacement::default()
        };
        if let Some((network, node)) = network.zip(snapshot.node(donor, id)) {
            bandwidth::take(&mut part, node, network, wanted.topology.rdma_gbits);
        }
        (id.clone(), part)
    });
    let placement = Placement {
        donor: donor.clone(),
        nodes: nodes.collect(),
        offer_generation: offer_generation(snapshot, donor),
        resource_name: kind.resource.clone(),
        resource_count,
        profile: kind.profile.clone(),
    };
    Some(Fit::Fits { placement, waste_milli })
}

fn offer_generation(snapshot: &Snapshot<'_>, donor: &ClusterId) -> u64 {
    snapshot.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()).map_or(0, |offer| offer.generation)
}

/// Thousandths that stay free on partly used devices. Existing MIG instances strand nothing.
fn stranded_milli(snapshot: &Snapshot<'_>, placement: &Placement) -> u64 {
    let mut stranded_milli = 0;
    for (id, part) in &placement.nodes {
        let lent = snapshot.occupancy(&placement.donor, id);
        for (index, share) in part.devices.iter().filter(|(_, share)| share.slots.is_empty()) {
            let lent = lent.and_then(|node| node.devices.get(index)).copied().unwrap_or(0);
            stranded_milli +=
                u64::from(crate::model::limits::WHOLE_MILLI.saturating_sub(lent).saturating_sub(share.milli));
        }
    }
    stranded_milli
}

/// Shares that fit on a node by devices, CPU and memory. With `whole_node`, a node counts only if all of it is free and
/// wanted.
fn node_units(
    node: &Node,
    classes: &[Option<ClassName>],
    lent: Option<&NodeOccupancy>,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    load: Load,
) -> u32 {
    if load == Load::Current && !node.schedulable {
        return 0;
    }
    let mut units = 0_u32;
    for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
        let found = serves(device, class.as_ref(), wanted, kind)
            .then(|| {
                let share = &wanted.gpus.share;
                if load == Load::Current {
                    room(device, index, lent, share)
                } else {
                    room(&device.idle(), index, lent, share)
                }
            })
            .flatten();
        let here = found.map_or(0, |room| room.units);
        if wanted.topology.whole_node
            && (here == 0 || is_lent(lent, index) || (load == Load::Current && device.local_use_milli > 0))
        {
            return 0;
        }
        units = units.saturating_add(here);
    }
    let room = if needs_wired_node(wanted) {
        WiredNode::of(node, classes, lent, wanted, kind, load).units(wanted.most())
    } else {
        let (cpu, memory) = free_cpu_and_memory(node, lent, load);
        units.min(how_many(cpu, wanted.gpus.cpu_milli_per_gpu)).min(how_many(memory, wanted.gpus.memory_mib_per_gpu))
    };
    if wanted.topology.whole_node && room < units { 0 } else { room }
}

fn is_lent(lent: Option<&NodeOccupancy>, index: u32) -> bool {
    lent.is_some_and(|node| node.devices.contains_key(&index))
}

/// Free CPU in thousandths of a core and memory in MiB.
pub(crate) fn free_cpu_and_memory(node: &Node, lent: Option<&NodeOccupancy>, load: Load) -> (u64, u64) {
    if load == Load::Idle {
        return (node.cpu_milli, node.memory_mib);
    }
    let (cpu, memory) = lent.map_or((0, 0), |node| (node.cpu_milli, node.memory_mib));
    (
        node.cpu_milli.saturating_sub(node.local_cpu_milli).saturating_sub(cpu),
        node.memory_mib.saturating_sub(node.local_memory_mib).saturating_sub(memory),
    )
}

fn how_many(whole: u64, part: u64) -> u32 {
    whole.checked_div(part).map_or(u32::MAX, |parts| u32::try_from(parts).unwrap_or(u32::MAX))
}

/// Whether a device matches the demand.
pub(crate) fn serves(device: &Device, class: Option<&ClassName>, wanted: &Wanted<'_>, kind: &ResourceKind) -> bool {
    class == Some(wanted.class)
        && device.sharing.isolation() >= wanted.gpus.isolation
        && ResourceKind::of(device, &wanted.gpus.share) == *kind
        && wanted.gpus.gpu_type.as_ref().is_none_or(|wanted| is_of_type(device, kind, wanted))
        && wanted.selector.is_none_or(|selector| selector.matches(&device.facts()))
        && wanted
            .most_milli
            .is_none_or(|most| room(device, 0, None, &wanted.gpus.share).is_some_and(|room| room.milli_each <= most))
}

/// Whether shares of this kind on the device are of the type.
pub(crate) fn is_of_type(device: &Device, kind: &ResourceKind, gpu_type: &GpuType) -> bool {
    device.product_name == gpu_type.product && kind.profile == gpu_type.profile
}

/// Lays the shares on the chosen nodes. On each, devices in part use come first, so that whole ones stay whole.
fn lay_out(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    chosen: &ChosenNodes<'_>,
) -> Option<Placement> {
    let mut nodes = LiteMap::new();
    let mut resource_count = 0_u64;
    for (candidate, here) in &chosen.nodes {
        let here = *here;
        let mut part = NodePlacement {
            cpu_milli: wanted.gpus.cpu_milli_per_gpu.saturating_mul(u64::from(here)),
            memory_mib: wanted.gpus.memory_mib_per_gpu.saturating_mul(u64::from(here)),
            ..NodePlacement::default()
        };
        if let Some(network) = chosen.network {
            bandwidth::take(&mut part, candidate.node, network, wanted.topology.rdma_gbits);
        }
        let classes = snapshot.state.device_classes(donor, candidate.id);
        let laid = if needs_wired_node(wanted) {
            WiredNode::of(candidate.node, classes, candidate.lent, wanted, kind, Load::Current).lay(here)?
        } else {
            lay_on_node(candidate, classes, wanted, kind, here)
        };
        part.numa = laid.numa;
        for (index, (units, room)) in laid.devices {
            resource_count += u64::from(units) * u64::from(room.resources_each);
            let device = candidate.node.devices.get(usize::try_from(index).unwrap_or(usize::MAX))?;
            let slots = mig_device::first_slots(device, index, candidate.lent, &wanted.gpus.share, units);
            part.devices.insert(index, DeviceShare { milli: units * room.milli_each, units, slots });
        }
        nodes.insert(candidate.id.clone(), part);
    }
    Some(Placement {
        donor: donor.clone(),
        nodes,
        offer_generation: offer_generation(snapshot, donor),
        resource_name: kind.resource.clone(),
        resource_count,
        profile: kind.profile.clone(),
    })
}

/// Lays `here` shares on one node's devices regardless of wiring: devices that take less per share come first, then
/// those in use.
fn lay_on_node(
    candidate: &NodeRoom<'_>,
    classes: &[Option<ClassName>],
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
    mut here: u32,
) -> NodeLayout {
    let mut rooms: Vec<((u32, u32, bool), u32, device::DeviceRoom)> = (0_u32..)
        .zip(candidate.node.devices.iter().zip(classes))
        .filter(|(_, (device, class))| serves(device, class.as_ref(), wanted, kind))
        .filter_map(|(index, (device, _))| {
            let room = room(device, index, candidate.lent, &wanted.gpus.share)?;
            let lent = candidate.lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
            let whole = in_idle_clique(candidate.node, candidate.lent, device);
            (room.units > 0).then_some((
                (room.milli_each, u32::MAX - lent - device.local_use_milli, whole),
                index,
                room,
            ))
        })
        .collect();
    rooms.sort_by_key(|(rank, index, _)| (*rank, *index));
    let mut laid = NodeLayout::default();
    for (_, index, room) in rooms {
        let units = room.units.min(here);
        if units == 0 {
            break;
        }
        here -= units;
        laid.devices.insert(index, (units, room));
    }
    laid
}
