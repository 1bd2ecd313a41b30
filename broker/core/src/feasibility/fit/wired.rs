//! What of one node can be had together: devices that NVLink joins, CPU and memory of the NUMA nodes of those devices,
//! and whole members of a gang.
//!
//! A lease with alignment takes CPU and memory of certain NUMA nodes. Of local work, and of leases without alignment,
//! nobody knows where theirs are: who wants alignment has to do without as much on every NUMA node. So what is placed
//! with alignment finds its CPUs whatever the others do; the others need no more than enough in all, for whose CPUs are
//! bound keeps them.

use std::collections::{BTreeMap, BTreeSet};

use litemap::LiteMap;

use crate::feasibility::fit::device::{DeviceRoom, room};
use crate::feasibility::fit::{ResourceKind, Wanted, free_cpu_and_memory, serves};
use crate::model::demand::{Numa, NvLink};
use crate::model::id::ClassName;
use crate::model::inventory::{Device, Node, NumaAmounts, Sharing};
use crate::state::occupancy::NodeOccupancy;

/// A device with room.
#[derive(Clone)]
struct Seat<'a> {
    index: u32,
    room: DeviceRoom,
    /// Devices that are in part use already come first.
    rank: u32,
    numa: Option<u32>,
    clique: Option<&'a str>,
}

/// What is free of one node, in the terms of one request.
#[derive(Clone)]
pub(crate) struct Wired<'a> {
    seats: Vec<Seat<'a>>,
    /// Free of each NUMA node; of `None` where anything will do.
    numa: BTreeMap<Option<u32>, NumaAmounts>,
    /// Free of the node.
    all: NumaAmounts,
    /// For each share.
    each: NumaAmounts,
    aligned: bool,
    /// Shares of one member.
    member: Option<u32>,
}

/// Shares laid on a node: by device, and what each NUMA node gives for them where that is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Laid {
    pub(crate) devices: BTreeMap<u32, (u32, DeviceRoom)>,
    pub(crate) numa: LiteMap<u32, NumaAmounts>,
}

/// Whether placing `wanted` takes a look at how devices are joined, or at members.
pub(crate) fn is_wired(wanted: &Wanted<'_>) -> bool {
    wanted.members.is_some() || wanted.topology.nvlink == NvLink::Required || wanted.topology.numa == Numa::Aligned
}

/// The clique of a device that NVLink joins to others; MIG instances are joined to nothing.
pub(crate) fn clique(device: &Device) -> Option<&str> {
    device.wiring.nvlink.as_deref().filter(|_| !matches!(device.sharing, Sharing::Mig { .. }))
}

/// Whether a device is one of several that NVLink joins and of which nothing is taken: who does not ask for NVLink
/// takes others first.
pub(crate) fn is_of_a_whole_clique(node: &Node, lent: Option<&NodeOccupancy>, device: &Device) -> bool {
    let Some(own) = clique(device) else { return false };
    let mut joined = (0_u32..).zip(&node.devices).filter(|(_, other)| clique(other) == Some(own));
    joined.all(|(index, other)| {
        let lent = lent.is_some_and(|node| node.devices.contains_key(&index));
        other.healthy && other.local_use_milli == 0 && !lent
    })
}

/// What an aligned share may have of each NUMA node: what it has for pods, less what other aligned leases have of it,
/// less all that others have of the node, wherever that is.
pub(crate) fn free_numa(node: &Node, lent: Option<&NodeOccupancy>, as_it_is: bool) -> BTreeMap<u32, NumaAmounts> {
    if !as_it_is {
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

impl<'a> Wired<'a> {
    /// What of a node is free now, or with `as_it_is` false, what is if nothing is in use.
    pub(crate) fn of(
        (node, classes): (&'a Node, &[Option<ClassName>]),
        lent: Option<&NodeOccupancy>,
        wanted: &Wanted<'_>,
        kind: &ResourceKind,
        as_it_is: bool,
    ) -> Self {
        let lent = lent.filter(|_| as_it_is);
        let aligned = wanted.topology.numa == Numa::Aligned;
        let seat = |(index, (device, class)): (u32, (&'a Device, &Option<ClassName>))| {
            if !serves(device, class.as_ref(), wanted, kind) {
                return None;
            }
            let share = &wanted.gpus.share;
            let room =
                if as_it_is { room(device, index, lent, share) } else { room(&device.idle(), index, lent, share) };
            let in_use = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
            Some(Seat {
                index,
                room: room.filter(|room| room.units > 0)?,
                rank: u32::MAX - in_use - device.local_use_milli,
                numa: device.wiring.numa.filter(|_| aligned),
                clique: clique(device).filter(|_| wanted.topology.nvlink == NvLink::Required),
            })
        };
        let seats = (0_u32..).zip(node.devices.iter().zip(classes)).filter_map(seat);
        let seats = seats.filter(|seat| {
            (!aligned || seat.numa.is_some()) && (wanted.topology.nvlink != NvLink::Required || seat.clique.is_some())
        });
        let (cpu_milli, memory_mib) = free_cpu_and_memory(node, lent, as_it_is);
        let all = NumaAmounts { cpu_milli, memory_mib };
        let numa = if aligned {
            free_numa(node, lent, as_it_is).into_iter().map(|(number, free)| (Some(number), free)).collect()
        } else {
            BTreeMap::from([(None, all)])
        };
        let each = NumaAmounts { cpu_milli: wanted.gpus.cpu_milli_per_gpu, memory_mib: wanted.gpus.memory_mib_per_gpu };
        let member = wanted.members.map(|_| wanted.gpus.count);
        Self { seats: seats.collect(), numa, all, each, aligned, member }
    }

    /// Shares that one request can have of the node: in whole members where there are any, else in one piece. Looks no
    /// further than `enough`.
    pub(crate) fn units(&self, enough: u32) -> u32 {
        let Some(count) = self.member else { return self.largest_piece() };
        let (mut left, mut units) = (self.clone(), 0_u32);
        while units < enough && left.lay_piece(count, &mut Laid::default()) {
            units = units.saturating_add(count);
        }
        units
    }

    /// Lays `units` shares, of which there is room for [`Self::units`]; `None` if there is not.
    pub(crate) fn lay(mut self, units: u32) -> Option<Laid> {
        let mut laid = Laid::default();
        let piece = self.member.unwrap_or(units).max(1);
        for _ in 0..units / piece {
            if !self.lay_piece(piece, &mut laid) {
                return None;
            }
        }
        Some(laid)
    }

    fn cliques(&self) -> BTreeSet<Option<&'a str>> {
        self.seats.iter().map(|seat| seat.clique).collect()
    }

    /// Shares that fit on devices of one clique.
    fn largest_piece(&self) -> u32 {
        self.cliques().into_iter().map(|clique| self.piece(clique)).max().unwrap_or(0)
    }

    fn piece(&self, clique: Option<&str>) -> u32 {
        let of_numa = self.numa.keys().map(|numa| self.piece_of_numa(clique, *numa));
        of_numa.fold(0, u32::saturating_add).min(self.all.holds(self.each))
    }

    /// Shares on devices of one clique and one NUMA node.
    fn piece_of_numa(&self, clique: Option<&str>, numa: Option<u32>) -> u32 {
        let seats = self.seats.iter().filter(|seat| seat.clique == clique && seat.numa == numa);
        let devices = seats.fold(0_u32, |sum, seat| sum.saturating_add(seat.room.units));
        devices.min(self.numa.get(&numa).map_or(0, |free| free.holds(self.each)))
    }

    /// Lays one piece: in the clique that is left with least, on the one NUMA node that is left with least, or else on
    /// as few as possible. False, and nothing is changed, if none has room for it.
    fn lay_piece(&mut self, shares: u32, laid: &mut Laid) -> bool {
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
        self.seats.retain(|seat| seat.room.units > 0);
        true
    }

    fn take(&mut self, clique: Option<&str>, numa: Option<u32>, shares: u32, laid: &mut Laid) {
        let taken = self.each.times(shares);
        self.all = self.all.less(taken);
        if let Some(free) = self.numa.get_mut(&numa) {
            *free = free.less(taken);
        }
        if let Some(number) = numa.filter(|_| self.aligned && shares > 0) {
            let amounts = laid.numa.entry(number).or_default();
            *amounts = amounts.plus(taken);
        }
        let mut seats: Vec<&mut Seat<'_>> =
            self.seats.iter_mut().filter(|seat| seat.clique == clique && seat.numa == numa).collect();
        seats.sort_by_key(|seat| (seat.rank, seat.index));
        let mut left = shares;
        for seat in seats {
            let units = seat.room.units.min(left);
            if units == 0 {
                continue;
            }
            left -= units;
            seat.room.units -= units;
            let (taken, _) = laid.devices.entry(seat.index).or_insert((0, seat.room));
            *taken += units;
        }
    }
}
