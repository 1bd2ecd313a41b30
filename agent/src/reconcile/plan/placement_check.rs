//! The donor's own arithmetic: what a placement takes, recomputed from this cluster's inventory and from the leases
//! that it admitted itself. The broker's count is never taken over.
//!
//! It accepts what the broker accepts on a fresh offer. Health, cordons and local pods may have changed since the
//! offer, so they are left to the broker and to [`local_use`](super::local_use).

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement, WHOLE_MILLI};
use comity_agent_state::record::{AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord, Records, functions_of};
use comity_proto::v1::{Device, Node, sharing};
use comity_types::LeaseId;
use comity_types::mig::{Board, Slots};

use crate::observe::LocalReserve;

/// What a placement is checked against.
#[derive(Clone, Copy)]
pub(super) struct OwnCapacity<'a> {
    /// This cluster's nodes.
    pub(super) nodes: &'a [Node],
    /// Capacity of each node that is not lent.
    pub(super) reserve: LocalReserve,
    /// The leases that hold capacity here.
    pub(super) ledger: &'a Ledger<'a>,
}

/// The leases that hold capacity here, by this agent's own records.
pub(super) struct Ledger<'a> {
    held: Vec<AdmittedLease<'a>>,
    /// Admitted by this plan.
    planned: Vec<DonorRecord>,
}

/// A lease that holds capacity here.
#[derive(Clone, Copy)]
struct AdmittedLease<'a> {
    record: &'a DonorRecord,
    /// Whether a broker still wants it; if not, its capacity is about to be free.
    is_wanted: bool,
}

impl<'a> Ledger<'a> {
    /// The leases in the records.
    pub(super) fn of(records: &'a Records, desired: &DesiredState) -> Self {
        let wanted: BTreeSet<LeaseId> =
            desired.leases.iter().filter(|lease| lease.is_wanted()).map(|lease| lease.id).collect();
        let held = records
            .donors
            .values()
            .filter(|record| !record.removed)
            .map(|record| AdmittedLease { record, is_wanted: wanted.contains(&record.lease) });
        Self { held: held.collect(), planned: Vec::new() }
    }

    /// Adds a lease that this plan admits.
    pub(super) fn admit(&mut self, record: DonorRecord) {
        self.planned.push(record);
    }

    /// Thousandths of GPUs lent.
    pub(super) fn milli(&self) -> u64 {
        self.all().fold(0, |sum: u64, held| sum.saturating_add(held.record.capacity.milli()))
    }

    /// The leases but one, as they were admitted.
    pub(super) fn others(&self, lease: LeaseId) -> impl Iterator<Item = &DonorRecord> {
        self.all().map(|held| held.record).filter(move |record| record.lease != lease)
    }

    fn all(&self) -> impl Iterator<Item = AdmittedLease<'_>> {
        let planned = self.planned.iter().map(|record| AdmittedLease { record, is_wanted: true });
        self.held.iter().copied().chain(planned)
    }
}

/// Why a placement is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// It contradicts this cluster's own count.
    Disagrees(String),
    /// Its capacity is with leases that are about to go.
    Waits,
}

/// The capacity that a lease takes.
///
/// # Errors
/// [`Objection`]; the lease must not be admitted.
pub(super) fn check(own: OwnCapacity<'_>, lease: &Lease) -> Result<AdmittedCapacity, Objection> {
    let placement = lease.placement.as_ref().ok_or_else(|| disagrees("names no nodes".to_owned()))?;
    let capacity = counted(own.nodes, placement)?;
    check_demand(lease, placement)?;
    for (id, part) in &capacity.nodes {
        let node = find(own.nodes, id)?;
        check_node(own, node, part)?;
    }
    Ok(capacity)
}

fn disagrees(reason: String) -> Objection {
    Objection::Disagrees(reason)
}

fn find<'n>(nodes: &'n [Node], id: &str) -> Result<&'n Node, Objection> {
    nodes.iter().find(|node| node.id == id).ok_or_else(|| disagrees(format!("names node {id}, which is not here")))
}

/// Counts the placement's devices and resources by the own devices.
fn counted(nodes: &[Node], placement: &Placement) -> Result<AdmittedCapacity, Objection> {
    let (mut parts, mut resources) = (BTreeMap::new(), 0_u64);
    for given in &placement.nodes {
        let node = find(nodes, &given.node)?;
        if given.devices.is_empty() {
            return Err(disagrees(format!("takes no device of node {}", given.node)));
        }
        let mut part = AdmittedPart {
            devices: BTreeMap::new(),
            cpu_milli: given.cpu_milli,
            memory_mib: given.memory_mib,
            functions: functions_of(given),
        };
        for share in &given.devices {
            let admitted = counted_share(node, share, placement)
                .map_err(|reason| disagrees(format!("takes device {} of node {}: {reason}", share.device, node.id)))?;
            resources = resources.saturating_add(admitted.units);
            if part.devices.insert(share.device, admitted).is_some() {
                return Err(disagrees(format!("names device {} of node {} twice", share.device, node.id)));
            }
        }
        check_functions(node, given)?;
        if parts.insert(given.node.clone(), part).is_some() {
            return Err(disagrees(format!("names node {} twice", given.node)));
        }
    }
    if parts.is_empty() {
        return Err(disagrees("takes no device".to_owned()));
    }
    if resources != placement.resource_count {
        return Err(disagrees(format!(
            "counts {} of {}, and its devices are {resources}",
            placement.resource_count, placement.resource_name
        )));
    }
    Ok(AdmittedCapacity {
        resource_name: placement.resource_name.clone(),
        resource_count: placement.resource_count,
        mig_profile: placement.mig_profile.clone(),
        nodes: parts,
    })
}

/// The share of one device, with the number of Kubernetes resources that it is.
fn counted_share(node: &Node, share: &DeviceShare, placement: &Placement) -> Result<AdmittedShare, String> {
    let device = usize::try_from(share.device).ok().and_then(|at| node.devices.get(at));
    let device = device.ok_or_else(|| format!("the node has {}", node.devices.len()))?;
    if !is_counted_by(device, &placement.resource_name) {
        return Err(format!("{} counts it, not {}", device.resource_name, placement.resource_name));
    }
    if share.units == 0 || share.milli == 0 || share.milli > WHOLE_MILLI || !share.milli.is_multiple_of(share.units) {
        return Err(format!("{} thousandths are not {} equal shares of it", share.milli, share.units));
    }
    let wrong = |parts: &str| format!("{} thousandths are no {parts}", share.milli);
    let mut slots = Slots::NONE;
    let mode = device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref());
    let count = match mode {
        Some(sharing::Mode::TimeSlicing(slicing)) => {
            equal_parts(share.milli, slicing.replicas).ok_or_else(|| wrong("time slices"))?
        }
        Some(sharing::Mode::Mps(mps)) => equal_parts(share.milli, mps.shares).ok_or_else(|| wrong("MPS shares"))?,
        Some(sharing::Mode::Fractional(fractional)) => {
            let each = share.milli / share.units;
            if each != WHOLE_MILLI && !each.is_multiple_of(fractional.step_milli.max(1)) {
                return Err(wrong("multiple of its step"));
            }
            share.units
        }
        Some(sharing::Mode::Mig(mig)) if mig.layout.is_some() => {
            slots = cut_slots(device, share, placement)?;
            share.units
        }
        Some(sharing::Mode::Mig(mig)) => {
            let all = mig.instances.iter().fold(0_u32, |sum, of| sum.saturating_add(of.count));
            let of_profile = mig.instances.iter().find(|of| of.profile == placement.mig_profile);
            let each = (WHOLE_MILLI / all.max(1)).max(1);
            if share.milli != share.units.saturating_mul(each) || of_profile.is_none_or(|of| of.count < share.units) {
                return Err(wrong(&format!("{} instances of profile {:?}", share.units, placement.mig_profile)));
            }
            share.units
        }
        Some(sharing::Mode::Exclusive(_)) | None => {
            if (share.milli, share.units) != (WHOLE_MILLI, 1) {
                return Err(wrong("whole device"));
            }
            1
        }
    };
    if slots.is_empty() && !share.mig_starts.is_empty() {
        return Err("it has no slots of MIG instances".to_owned());
    }
    Ok(AdmittedShare { milli: share.milli, units: count.into(), mig_starts: share.mig_starts.clone(), slots })
}

/// With MIG's mixed strategy, each profile of a device has a resource of its own.
fn is_counted_by(device: &Device, resource: &str) -> bool {
    let of_profile = || resource.strip_prefix(&device.resource_name).is_some_and(|rest| rest.starts_with('-'));
    device.resource_name == resource || device.resource_name.ends_with("/mig") && of_profile()
}

/// Parts of a device in so many equal ones; thousandths are rounded down, and all parts are the whole device.
fn equal_parts(milli: u32, parts: u32) -> Option<u32> {
    let parts = parts.max(1);
    if milli == WHOLE_MILLI {
        return Some(parts);
    }
    let each = WHOLE_MILLI / parts;
    (each > 0 && milli.is_multiple_of(each) && milli / each <= parts).then(|| milli / each)
}

/// The slots of the share's instances.
fn cut_slots(device: &Device, share: &DeviceShare, placement: &Placement) -> Result<Slots, String> {
    let unknown = || format!("it has no instances of profile {:?}", placement.mig_profile);
    let board = Board::of(&device.product_name, device.memory_mib).ok_or_else(unknown)?;
    let (_, shape) = board.shape(&placement.mig_profile).ok_or_else(unknown)?;
    let wanted = usize::try_from(share.units).unwrap_or(usize::MAX);
    if share.mig_starts.len() != wanted || share.milli != share.units.saturating_mul(board.milli(shape)) {
        return Err(format!("{} thousandths are no {wanted} instances with a slot each", share.milli));
    }
    share.mig_starts.iter().try_fold(Slots::NONE, |all, start| {
        let taken = shape.at(*start).filter(|slots| !slots.overlaps(all));
        Ok(all.with(taken.ok_or_else(|| format!("no further instance of this profile starts at slot {start}"))?))
    })
}

/// Whether the node has the virtual functions.
fn check_functions(node: &Node, part: &NodePlacement) -> Result<(), Objection> {
    for wanted in &part.functions {
        let networks = node.rdma.iter().filter(|network| network.resource == wanted.resource);
        let there = networks.fold(0_u32, |sum, network| sum.saturating_add(network.functions));
        if wanted.count > there {
            return Err(disagrees(format!(
                "takes {} of {} on node {}, which has {there}",
                wanted.count, wanted.resource, node.id
            )));
        }
    }
    Ok(())
}

/// Whether the placement is as large as the lease's demand says.
fn check_demand(lease: &Lease, placement: &Placement) -> Result<(), Objection> {
    let Some(gpus) = &lease.gpus else { return Ok(()) };
    let units = |node: &NodePlacement| node.devices.iter().map(|share| u64::from(share.units)).sum::<u64>();
    let all: u64 = placement.nodes.iter().map(units).sum();
    if u64::from(gpus.count) > all {
        return Err(disagrees(format!("is for {} shares, and its devices are {all}", gpus.count)));
    }
    for node in &placement.nodes {
        let cpu = gpus.cpu_milli_per_gpu.saturating_mul(units(node));
        let memory = gpus.memory_mib_per_gpu.saturating_mul(units(node));
        if node.cpu_milli > cpu || node.memory_mib > memory {
            return Err(disagrees(format!(
                "takes {} thousandths of cores and {} MiB of node {}, and its shares there are {cpu} and {memory}",
                node.cpu_milli, node.memory_mib, node.node
            )));
        }
    }
    Ok(())
}

/// Whether the node has the part free beside its reserve and the other leases.
fn check_node(own: OwnCapacity<'_>, node: &Node, part: &AdmittedPart) -> Result<(), Objection> {
    match Others::on(own.ledger.all(), &node.id).check(own.reserve, node, part) {
        Ok(()) => Ok(()),
        Err(reason) => {
            // Once a lease that nobody wants is taken down, the same check passes.
            let staying = Others::on(own.ledger.all().filter(|held| held.is_wanted), &node.id);
            staying.check(own.reserve, node, part).map_err(|_| disagrees(reason))?;
            Err(Objection::Waits)
        }
    }
}

/// What other leases hold of a node.
struct Others<'a>(Vec<(LeaseId, &'a AdmittedPart)>);

impl<'a> Others<'a> {
    fn on(held: impl Iterator<Item = AdmittedLease<'a>>, node: &str) -> Self {
        Self(held.filter_map(|held| Some((held.record.lease, held.record.capacity.nodes.get(node)?))).collect())
    }

    fn check(&self, reserve: LocalReserve, node: &Node, part: &AdmittedPart) -> Result<(), String> {
        for (index, share) in &part.devices {
            let holders = self.0.iter().filter_map(|(id, other)| Some((id, other.devices.get(index)?)));
            let mut lent = share.milli;
            for (id, other) in holders {
                lent = lent.saturating_add(other.milli);
                if lent > WHOLE_MILLI || other.slots.overlaps(share.slots) {
                    return Err(format!("takes device {index} of node {}, which {id} holds", node.id));
                }
            }
        }
        let sum = |of: fn(&AdmittedPart) -> u64| {
            self.0.iter().map(|(_, part)| *part).chain([part]).fold(0_u64, |sum, part| sum.saturating_add(of(part)))
        };
        let devices = (node.devices.len() as u64).saturating_sub(reserve.gpus_per_node.into());
        let lendable = devices.saturating_mul(WHOLE_MILLI.into());
        for (what, lent, lendable) in [
            ("thousandths of GPUs", sum(AdmittedPart::milli), lendable),
            ("thousandths of cores", sum(|part| part.cpu_milli), node.cpu_milli.saturating_sub(reserve.cpu_milli)),
            ("MiB of memory", sum(|part| part.memory_mib), node.memory_mib.saturating_sub(reserve.memory_mib)),
        ] {
            if lent > lendable {
                return Err(format!(
                    "brings the leases on node {} to {lent} {what}, and beside its reserve (section reserve) the node \
                     has {lendable}",
                    node.id
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
