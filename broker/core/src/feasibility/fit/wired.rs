//! Fits shares that belong together on one node: devices connected by NVLink, CPU and memory of their NUMA nodes, and
//! whole members of a gang.
//!
//! An aligned lease takes CPU and memory of particular NUMA nodes. Nobody knows where local work and unaligned leases
//! run, so an aligned lease assumes that every NUMA node carries all of their load. Then it finds its CPUs whatever the
//! others do. The others only need enough in total, because bound CPUs stay with their owner.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::ClassName;
use litemap::LiteMap;

use crate::feasibility::fit::device::{DeviceRoom, Load, room};
use crate::feasibility::fit::{ResourceKind, Wanted, free_cpu_and_memory, serves};
use crate::model::demand::{Numa, NvLink};
use crate::model::inventory::{Device, Node, NumaAmounts, Sharing};
use crate::state::occupancy::NodeOccupancy;

/// A device with room for shares.
#[derive(Clone)]
struct FreeDevice<'a> {
    index: u32,
    room: DeviceRoom,
    /// Devices in part use come first.
    rank: u32,
    numa: Option<u32>,
    clique: Option<&'a str>,
}

/// The free capacity of one node, seen by one request.
#[derive(Clone)]
pub(crate) struct WiredNode<'a> {
    devices: Vec<FreeDevice<'a>>,
    /// Free CPU and memory by NUMA node; under `None` if the request is not aligned.
    numa: BTreeMap<Option<u32>, NumaAmounts>,
    /// Free CPU and memory of the node.
    all: NumaAmounts,
    /// CPU and memory per share.
    each: NumaAmounts,
    aligned: bool,
    /// Shares per member, for gangs.
    member: Option<u32>,
}

/// Shares laid on a node: units and room by device, and what each NUMA node gives if the request is aligned.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeLayout {
    pub(crate) devices: BTreeMap<u32, (u32, DeviceRoom)>,
    pub(crate) numa: LiteMap<u32, NumaAmounts>,
}

/// Whether placing `wanted` must consider wiring or members.
pub(crate) fn needs_wired_node(wanted: &Wanted<'_>) -> bool {
    wanted.members.is_some() || wanted.topology.nvlink == NvLink::Required || wanted.topology.numa == Numa::Aligned
}

/// The NVLink clique of a device; MIG instances have none.
pub(crate) fn clique(device: &Device) -> Option<&str> {
    device.wiring.nvlink.as_deref().filter(|_| !matches!(device.sharing, Sharing::Mig { .. }))
}

/// Whether NVLink joins the devices that pods get from a placement on `node`: the donor enforces its devices, or any
/// choice among the devices of the resource is joined.
pub(crate) fn joins_pods(node: &Node, resource: &str) -> bool {
    let mut cliques = node.devices.iter().filter(|device| device.resource_name == resource).map(clique);
    node.enforces.devices || cliques.next().is_some_and(|first| first.is_some() && cliques.all(|other| other == first))
}

/// Whether a device belongs to an entirely idle NVLink clique, which work without NVLink avoids.
pub(crate) fn in_idle_clique(node: &Node, lent: Option<&NodeOccupancy>, device: &Device) -> bool {
    let Some(own) = clique(device) else { return false };
    let mut joined = (0_u32..).zip(&node.devices).filter(|(_, other)| clique(other) == Some(own));
    joined.all(|(index, other)| {
        let lent = lent.is_some_and(|node| node.devices.contains_key(&index));
        other.healthy && other.local_use_milli == 0 && !lent
    })
}

/// Capacity of each NUMA node for aligned shares: all of it, less the aligned leases there, less all other work on the
/// node, which may run on any NUMA node.
pub(crate) fn free_numa(node: &Node, lent: Option<&NodeOccupancy>, load: Load) -> BTreeMap<u32, NumaAmounts> {
    if load == Load::Idle {
        return node.wiring.numa.clone();
    }
    let nothing = NodeOccupancy::default();
    let lent = lent.unwrap_or(&nothing);
    let bound = lent.numa.values().fold(NumaAmounts::default(), |sum, amounts| sum.plus(*amounts));
    let loose = NumaAmounts { cpu_milli: lent.cpu_milli, memory_mib: lent.memory_mib }
        .less(bound)
        .plus(NumaAmounts { cpu_milli: node.local_cpu_milli, memory_mib: node.local_memory_mib });
    let free = |(&number, has): (&u32, &NumaAmounts)| {
        (number, has.less(lent.numa.get(&number).copied().unwrap_or_default()).less(loose))
    };
    node.wiring.numa.iter().map(free).collect()
}

impl<'a> WiredNode<'a> {
    /// The free capacity of a node under `load`.
    pub(crate) fn of(
        node: &'a Node,
        classes: &[Option<ClassName>],
        lent: Option<&NodeOccupancy>,
        wanted: &Wanted<'_>,
        kind: &ResourceKind,
        load: Load,
    ) -> Self {
        let lent = lent.filter(|_| load == Load::Current);
        let aligned = wanted.topology.numa == Numa::Aligned;
        let joined = wanted.topology.nvlink == NvLink::Required;
        let is_kept = (!aligned || node.enforces.numa)
            && (!joined || wanted.unenforced_nvlink || joins_pods(node, &kind.resource));
        let device = |(index, (device, class)): (u32, (&'a Device, &Option<ClassName>))| {
            if !is_kept || !serves(device, class.as_ref(), wanted, kind) {
                return None;
            }
            let share = &wanted.gpus.share;
            let room = if load == Load::Current {
                room(device, index, lent, share)
            } else {
                room(&device.idle(), index, lent, share)
            };
            let in_use = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
            Some(FreeDevice {
                index,
                room: room.filter(|room| room.units > 0)?,
                rank: u32::MAX - in_use - device.local_use_milli,
                numa: device.wiring.numa.filter(|_| aligned),
                clique: clique(device).filter(|_| joined),
            })
        };
        let devices = (0_u32..).zip(node.devices.iter().zip(classes)).filter_map(device);
        let devices =
            devices.filter(|device| (!aligned || device.numa.is_some()) && (!joined || device.clique.is_some()));
        let (cpu_milli, memory_mib) = free_cpu_and_memory(node, lent, load);
        let all = NumaAmounts { cpu_milli, memory_mib };
        let numa = if aligned {
            free_numa(node, lent, load).into_iter().map(|(number, free)| (Some(number), free)).collect()
        } else {
            BTreeMap::from([(None, all)])
        };
        let each = NumaAmounts { cpu_milli: wanted.gpus.cpu_milli_per_gpu, memory_mib: wanted.gpus.memory_mib_per_gpu };
        let member = wanted.members.map(|_| wanted.gpus.count);
        Self { devices: devices.collect(), numa, all, each, aligned, member }
    }

    /// Shares that one request can get from the node: in whole members for a gang, else in one piece. Stops counting at
    /// `enough`.
    pub(crate) fn units(&self, enough: u32) -> u32 {
        let Some(count) = self.member else { return self.largest_piece() };
        let (mut left, mut units) = (self.clone(), 0_u32);
        while units < enough && left.lay_piece(count, &mut NodeLayout::default()) {
            units = units.saturating_add(count);
        }
        units
    }

    /// Lays `units` shares; `None` if there is no room for them.
    pub(crate) fn lay(mut self, units: u32) -> Option<NodeLayout> {
        let mut laid = NodeLayout::default();
        let piece = self.member.unwrap_or(units).max(1);
        for _ in 0..units / piece {
            if !self.lay_piece(piece, &mut laid) {
                return None;
            }
        }
        Some(laid)
    }

    fn cliques(&self) -> BTreeSet<Option<&'a str>> {
        self.devices.iter().map(|device| device.clique).collect()
    }

    fn largest_piece(&self) -> u32 {
        self.cliques().into_iter().map(|clique| self.piece(clique)).max().unwrap_or(0)
    }

    fn piece(&self, clique: Option<&str>) -> u32 {
        let of_numa = self.numa.keys().map(|numa| self.piece_of_numa(clique, *numa));
        of_numa.fold(0, u32::saturating_add).min(self.all.holds(self.each))
    }

    fn piece_of_numa(&self, clique: Option<&str>, numa: Option<u32>) -> u32 {
        let devices = self.devices.iter().filter(|device| device.clique == clique && device.numa == numa);
        let units = devices.fold(0_u32, |sum, device| sum.saturating_add(device.room.units));
        units.min(self.numa.get(&numa).map_or(0, |free| free.holds(self.each)))
    }

    /// Lays one piece: in the clique with least room left over, on the one NUMA node with least room left over, or else
    /// on as few as possible. Returns false and changes nothing if there is no room.
    fn lay_piece(&mut self, shares: u32, laid: &mut NodeLayout) -> bool {
        let cliques = self.cliques().into_iter().map(|clique| (self.piece(clique), clique));
        let Some((_, clique)) = cliques.filter(|(room, _)| *room >= shares).min() else { return false };
        let mut numas: Vec<(u32, Option<u32>)> =
            self.numa.keys().map(|numa| (self.piece_of_numa(clique, *numa), *numa)).collect();
        let one = numas.iter().filter(|(room, _)| *room >= shares).min().copied();
        if let Some(one) = one {
            numas = vec![one];
        } else {
            numas.sort_by_key(|(room, numa)| (u32::MAX - room, *numa));
        }
        let mut left = shares;
        for (room, numa) in numas {
            let here = room.min(left);
            left -= here;
            self.take(clique, numa, here, laid);
        }
        self.devices.retain(|device| device.room.units > 0);
        true
    }

    fn take(&mut self, clique: Option<&str>, numa: Option<u32>, shares: u32, laid: &mut NodeLayout) {
        let taken = self.each.times(shares);
        self.all = self.all.less(taken);
        if let Some(free) = self.numa.get_mut(&numa) {
            *free = free.less(taken);
        }
        if let Some(number) = numa.filter(|_| self.aligned && shares > 0) {
            let amounts = laid.numa.entry(number).or_default();
            *amounts = amounts.plus(taken);
        }
        let mut devices: Vec<&mut FreeDevice<'_>> =
            self.devices.iter_mut().filter(|device| device.clique == clique && device.numa == numa).collect();
        devices.sort_by_key(|device| (device.rank, device.index));
        let mut left = shares;
        for device in devices {
            let units = device.room.units.min(left);
            if units == 0 {
                continue;
            }
            left -= units;
            device.room.units -= units;
            let (taken, _) = laid.devices.entry(device.index).or_insert((0, device.room));
            *taken += units;
        }
    }
}
