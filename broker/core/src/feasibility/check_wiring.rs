//! Checks a placement's wiring: that devices are connected as requested, and that NUMA nodes and networks have enough
//! free.

use std::collections::BTreeMap;

use comity_types::ClusterId;
use litemap::LiteMap;

use crate::feasibility::fit::bandwidth::{has_bandwidth, takes_exactly};
use crate::feasibility::fit::device::Load;
use crate::feasibility::fit::wired::{clique, free_numa, joins_pods};
use crate::feasibility::fit::{ResourceKind, Wanted};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{Numa, NvLink};
use crate::model::inventory::{Device, Node, NumaAmounts};
use crate::model::placement::{NodePlacement, Placement};
use crate::state::occupancy::NodeOccupancy;

/// Checks the total of shares: exactly the requested number, or a permitted number of members.
pub(crate) fn check_count(wanted: &Wanted<'_>, placement: &Placement) -> Result<(), String> {
    let (units, count) = (placement.units(), u64::from(wanted.gpus.count.max(1)));
    let Some(members) = wanted.members else {
        return if units == count { Ok(()) } else { Err(format!("the placement holds {units} of {count} shares")) };
    };
    let whole = placement.nodes.values().all(|part| units_of(part).is_multiple_of(count));
    if whole && (u64::from(members.min)..=u64::from(members.desired)).contains(&(units / count)) {
        return Ok(());
    }
    Err(format!(
        "the placement holds {units} shares, which are not {} to {} members of {count}, each on one node",
        members.min, members.desired
    ))
}

/// Checks that each of several nodes gives the requested bandwidth on one common network, and that a single node gives
/// none.
pub(crate) fn check_network(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    placement: &Placement,
) -> Result<(), String> {
    let gbits = wanted.topology.rdma_gbits;
    if gbits == 0 || placement.nodes.len() < 2 {
        let none = placement.nodes.values().all(|part| part.rdma_gbits.is_empty() && part.rdma_functions.is_empty());
        return if none { Ok(()) } else { Err("the placement takes bandwidth that it does not need".to_owned()) };
    }
    let not_joined = || format!("the placement does not take {gbits} Gbit/s of each node on one network");
    let network = placement.nodes.values().find_map(|part| part.rdma_gbits.keys().next()).ok_or_else(not_joined)?;
    for (id, part) in &placement.nodes {
        let free = |node: &&Node| has_bandwidth(node, snapshot.occupancy(donor, id), network, gbits, Load::Current);
        let node = snapshot.node(donor, id).filter(free);
        let node =
            node.ok_or_else(|| format!("node {id} of {donor} does not have {gbits} Gbit/s free on {network}"))?;
        if !takes_exactly(part, node, network, gbits) {
            return Err(not_joined());
        }
    }
    Ok(())
}

/// Checks one node's part: devices of one clique per member, CPU and memory from the NUMA nodes of its devices, and that
/// the donor enforces both.
pub(crate) fn check_part(
    node: &Node,
    lent: Option<&NodeOccupancy>,
    part: &NodePlacement,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
) -> Result<(), String> {
    let device = |index: &u32| usize::try_from(*index).ok().and_then(|at| node.devices.get(at));
    if wanted.topology.nvlink == NvLink::Required {
        if !joins_pods(node, &kind.resource) {
            return Err("does not enforce devices, so pods may get some that NVLink does not join".to_owned());
        }
        check_cliques(part, wanted, device)?;
    }
    if wanted.topology.numa != Numa::Aligned {
        let bound = !part.numa.is_empty();
        return if bound {
            Err("takes CPU or memory of particular NUMA nodes without need".to_owned())
        } else {
            Ok(())
        };
    }
    if !node.enforces.numa {
        return Err("does not enforce that CPU and memory come from the NUMA nodes of devices".to_owned());
    }
    let each = NumaAmounts { cpu_milli: wanted.gpus.cpu_milli_per_gpu, memory_mib: wanted.gpus.memory_mib_per_gpu };
    let mut needed: LiteMap<u32, NumaAmounts> = LiteMap::new();
    for (index, share) in &part.devices {
        let numa = device(index).and_then(|device| device.wiring.numa);
        let numa = numa.ok_or_else(|| format!("does not say at which NUMA node device {index} is"))?;
        let amounts = needed.entry(numa).or_default();
        *amounts = amounts.plus(each.times(share.units));
    }
    if needed != part.numa {
        return Err("does not take CPU and memory of the NUMA nodes of its devices".to_owned());
    }
    let free = free_numa(node, lent, Load::Current);
    match needed.iter().find(|(number, needed)| free.get(number).is_none_or(|free| free.holds(**needed) == 0)) {
        Some((number, _)) => Err(format!("lacks CPU or memory of NUMA node {number}")),
        None => Ok(()),
    }
}

fn check_cliques<'d>(
    part: &NodePlacement,
    wanted: &Wanted<'_>,
    device: impl Fn(&u32) -> Option<&'d Device>,
) -> Result<(), String> {
    let mut cliques: BTreeMap<&str, u64> = BTreeMap::new();
    for (index, share) in &part.devices {
        let clique =
            device(index).and_then(clique).ok_or_else(|| format!("has no NVLink between device {index} and others"))?;
        *cliques.entry(clique).or_default() += u64::from(share.units);
    }
    let piece = if wanted.members.is_some() { u64::from(wanted.gpus.count.max(1)) } else { units_of(part).max(1) };
    if cliques.values().all(|units| units.is_multiple_of(piece)) {
        return Ok(());
    }
    Err("does not give devices that NVLink joins".to_owned())
}

fn units_of(part: &NodePlacement) -> u64 {
    part.devices.values().map(|share| u64::from(share.units)).sum()
}
