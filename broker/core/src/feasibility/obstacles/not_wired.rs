//! Finds the wiring requirement that a donor cannot meet, and what would change that. Each is tried alone, in a fixed
//! order: NVLink, NUMA, RDMA.

use comity_types::{ClassName, ClusterId};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::wired::clique;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{Numa, NvLink, Topology};
use crate::model::inventory::{Device, Node};
use crate::model::placement::Placement;

/// The first requirement that fails at a donor that could serve the request now without any; or, where the request
/// would have to wait anyway, the first that waiting cannot help. `None` if there is none. `least` shares are needed.
pub(crate) fn wiring_obstacle(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    least: u64,
) -> Option<Obstacle> {
    if !wanted.topology.asks_for_wiring() {
        return None;
    }
    let plain = wanted.topology.without_wiring();
    let waits = match ask(snapshot, donor, wanted, plain) {
        Ok(_) => false,
        Err((_, ever)) if ever >= least => true,
        Err(_) => return None,
    };
    let wishes = [
        Topology { nvlink: wanted.topology.nvlink, ..plain },
        Topology { numa: wanted.topology.numa, ..plain },
        Topology { rdma_gbits: wanted.topology.rdma_gbits, ..plain },
    ];
    let fails = |wish| ask(snapshot, donor, wanted, wish).err().filter(|(_, ever)| !waits || *ever < least);
    let failed = wishes.into_iter().find_map(|wish| fails(wish).map(|lacks| (wish, lacks)));
    // Each requirement alone may leave more room than all together.
    let together = ask(snapshot, donor, wanted, wanted.topology).err().map_or(least, |(_, ever)| ever);
    let Some((wish, (now, ever))) = failed else {
        let reason =
            format!("{donor} can grant each of NVLink, NUMA and RDMA as asked for, but not all of them together");
        if together < least {
            let reason = format!("{reason}: so it has room for {together} of {least} shares even when idle");
            let fewer = if together == 0 { String::new() } else { format!(", or ask for at most {together}") };
            return Some(obstacle(Cure::Change, "wiring-together", reason, format!("leave one of them out{fewer}")));
        }
        let unblock = "leave one of them out, or wait until more is free";
        return (!waits).then(|| obstacle(Cure::Waiting, "wiring-together", format!("{reason} now"), unblock));
    };
    let known = |knows: fn(&Node, &Device) -> bool| {
        let of_class = |(_, node, classes): (_, &Node, &[Option<ClassName>])| {
            node.devices
                .iter()
                .zip(classes)
                .any(|(device, class)| class.as_ref() == Some(wanted.class) && knows(node, device))
        };
        snapshot.nodes(donor).any(of_class)
    };
    let class = wanted.class;
    let wait = |instead: &str| {
        if together < least && together > 0 && together < ever {
            format!("ask for at most {together} shares, or {instead}")
        } else if ever.min(together) < least {
            instead.to_owned()
        } else {
            format!("wait until more is free, or {instead}")
        }
    };
    let even_idle = match (ever < least, together < ever.min(least)) {
        (true, false) => format!(", and for {ever} when idle"),
        (false, false) => String::new(),
        (_, true) => format!(", and, with all that is asked for together, for {together} when idle"),
    };
    let cure = if ever.min(together) < least { Cure::Change } else { Cure::Waiting };
    Some(if wish.nvlink == NvLink::Required {
        let whole = wanted.under_terms(snapshot, donor).topology.whole_node && !wanted.topology.whole_node;
        let (reason, unblock) = if !known(|_, device| clique(device).is_some()) {
            (
                format!("{donor} does not say that NVLink joins any of its devices of class {class}"),
                "prefer NVLink rather than require it, or ask its owner to say so in the inventory".to_owned(),
            )
        } else if whole {
            (
                format!(
                    "{donor} lends GPUs that NVLink joins by whole nodes only, and has whole nodes for {now} of \
                     {least} shares free{even_idle}"
                ),
                wait("only prefer NVLink"),
            )
        } else {
            let place = if wanted.members.is_some() { "in members" } else { "on each node" };
            (
                format!("{donor} has room for {now} of {least} shares that NVLink joins {place} now{even_idle}"),
                wait("ask for fewer that are joined, or only prefer NVLink"),
            )
        };
        obstacle(cure, "no-nvlink", reason, unblock)
    } else if wish.numa == Numa::Aligned {
        let knows = |node: &Node, device: &Device| device.wiring.numa.is_some() && !node.wiring.numa.is_empty();
        let (reason, unblock) = if known(knows) {
            (
                format!(
                    "{donor} has room for {now} of {least} shares with CPU and memory of their GPU's NUMA node \
                     now{even_idle}"
                ),
                wait("ask for less CPU and memory with each, or without alignment"),
            )
        } else {
            (
                format!("{donor} does not say at which NUMA nodes its devices of class {class} are"),
                "ask without alignment, or ask its owner to say so in the inventory".to_owned(),
            )
        };
        obstacle(cure, "no-numa-alignment", reason, unblock)
    } else {
        let gbits = wish.rdma_gbits;
        let (reason, unblock) = if known(|node, _| !node.wiring.rdma_gbits.is_empty()) {
            let by_functions = known(|node, _| !node.wiring.rdma_functions.is_empty());
            let whole = if by_functions { ", in whole virtual functions" } else { "" };
            (
                format!(
                    "{donor} has room for {now} of {least} shares on one node, or on nodes with {gbits} Gbit/s free on \
                     one network{whole}{even_idle}"
                ),
                wait("ask for less bandwidth, or for what fits on one node"),
            )
        } else {
            (
                format!("{donor} does not say that nodes with devices of class {class} have networks for RDMA"),
                "ask for what fits on one node, or without RDMA, or ask its owner to say so in the inventory"
                    .to_owned(),
            )
        };
        obstacle(cure, "no-rdma", reason, unblock)
    })
}

/// Fits `wanted` under another topology; on failure, returns the shares that fit now and when idle.
fn ask(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    topology: Topology,
) -> Result<Placement, (u64, u64)> {
    match fit(snapshot, donor, &Wanted { topology, ..*wanted }, &mut MigValues::default()) {
        Fit::Fits { placement, .. } => Ok(placement),
        Fit::Lacks { now, ever } => Err((now, ever)),
    }
}
