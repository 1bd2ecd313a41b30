//! Finds the wiring requirement that a donor cannot meet, and a remedy. Each is tried alone, in a fixed order: NVLink,
//! NUMA, RDMA.

use comity_types::{ClassName, ClusterId};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::wired::{clique, joins_pods};
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{Numa, NvLink, Topology};
use crate::model::inventory::{Device, Node};
use crate::model::placement::Placement;

const NOT_ENFORCED: &str = "not-enforced";

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
        Err(room) if room.ever >= least => true,
        Err(_) => return None,
    };
    let single = [
        Topology { nvlink: wanted.topology.nvlink, ..plain },
        Topology { numa: wanted.topology.numa, ..plain },
        Topology { rdma_gbits: wanted.topology.rdma_gbits, ..plain },
    ];
    let fails = |topology| ask(snapshot, donor, wanted, topology).err().filter(|room| !waits || room.ever < least);
    let failed = single.into_iter().find_map(|topology| Some((topology, fails(topology)?)));
    // Each requirement alone may leave more room than all together.
    let together = ask(snapshot, donor, wanted, wanted.topology).err().map_or(least, |room| room.ever);
    let Some((topology, room)) = failed else {
        return (together < least || !waits).then(|| only_together(donor, least, together));
    };
    let lack = Lack { snapshot, donor, wanted, least, room, together };
    Some(if topology.nvlink == NvLink::Required {
        lack.of_nvlink()
    } else if topology.numa == Numa::Aligned {
        lack.of_numa_alignment()
    } else {
        lack.of_rdma(topology.rdma_gbits)
    })
}

/// The obstacle where a donor can meet each requirement alone, but not all of them. `together` shares fit when idle.
fn only_together(donor: &ClusterId, least: u64, together: u64) -> Obstacle {
    let reason = format!("{donor} can grant each of NVLink, NUMA and RDMA as asked for, but not all of them together");
    if together < least {
        let reason = format!("{reason}: so it has room for {together} of {least} shares even when idle");
        let fewer = if together == 0 { String::new() } else { format!(", or ask for at most {together}") };
        return obstacle(Cure::Change, "wiring-together", reason, format!("leave one of them out{fewer}"));
    }
    let unblock = "leave one of them out, or wait until more is free";
    obstacle(Cure::Waiting, "wiring-together", format!("{reason} now"), unblock)
}

/// Shares that fit at a donor under one topology.
#[derive(Clone, Copy)]
struct FittingShares {
    now: u64,
    /// When the donor is idle.
    ever: u64,
}

/// One requirement that a donor cannot meet.
struct Lack<'c, 'a> {
    snapshot: &'c Snapshot<'a>,
    donor: &'c ClusterId,
    wanted: &'c Wanted<'c>,
    /// Shares that are needed.
    least: u64,
    /// Room under this requirement alone.
    room: FittingShares,
    /// Shares that fit under all requirements when the donor is idle.
    together: u64,
}

impl Lack<'_, '_> {
    fn of_nvlink(&self) -> Obstacle {
        let Self { snapshot, donor, wanted, least, room: FittingShares { now, .. }, .. } = self;
        let (class, even_idle) = (wanted.class, self.even_idle());
        let whole = wanted.under_terms(snapshot, donor).topology.whole_node && !wanted.topology.whole_node;
        let (reason, unblock) = if !self.has_device(|_, device| clique(device).is_some()) {
            (
                format!("{donor} does not say that NVLink joins any of its devices of class {class}"),
                "prefer NVLink rather than require it, or ask its owner to say so in the inventory".to_owned(),
            )
        } else if !self.has_device(|node, device| clique(device).is_some() && joins_pods(node, &device.resource_name)) {
            return obstacle(
                Cure::Change,
                NOT_ENFORCED,
                format!(
                    "{donor} does not enforce which devices of class {class} pods get, and NVLink does not join all of \
                     a node"
                ),
                "prefer NVLink rather than require it, or ask its owner to enforce devices",
            );
        } else if whole {
            (
                format!(
                    "{donor} lends GPUs that NVLink joins by whole nodes only, and has whole nodes for {now} of \
                     {least} shares free{even_idle}"
                ),
                self.wait_or("only prefer NVLink"),
            )
        } else {
            let place = if wanted.members.is_some() { "in members" } else { "on each node" };
            (
                format!("{donor} has room for {now} of {least} shares that NVLink joins {place} now{even_idle}"),
                self.wait_or("ask for fewer that are joined, or only prefer NVLink"),
            )
        };
        obstacle(self.cure(), "no-nvlink", reason, unblock)
    }

    fn of_numa_alignment(&self) -> Obstacle {
        let Self { donor, wanted, least, room: FittingShares { now, .. }, .. } = self;
        let (class, even_idle) = (wanted.class, self.even_idle());
        let knows_numa = |node: &Node, device: &Device| device.wiring.numa.is_some() && !node.wiring.numa.is_empty();
        if self.has_device(knows_numa)
            && !self.has_device(|node, device| knows_numa(node, device) && node.enforces.numa)
        {
            return obstacle(
                Cure::Change,
                NOT_ENFORCED,
                format!(
                    "{donor} does not enforce that containers get CPU and memory of the NUMA nodes of their devices of \
                     class {class}"
                ),
                "ask without alignment, or ask its owner for the kubelet's topology manager policy single-numa-node or \
                 restricted",
            );
        }
        let (reason, unblock) = if self.has_device(knows_numa) {
            (
                format!(
                    "{donor} has room for {now} of {least} shares with CPU and memory of their GPU's NUMA node \
                     now{even_idle}"
                ),
                self.wait_or("ask for less CPU and memory with each, or without alignment"),
            )
        } else {
            (
                format!("{donor} does not say at which NUMA nodes its devices of class {class} are"),
                "ask without alignment, or ask its owner to say so in the inventory".to_owned(),
            )
        };
        obstacle(self.cure(), "no-numa-alignment", reason, unblock)
    }

    fn of_rdma(&self, gbits: u32) -> Obstacle {
        let Self { donor, wanted, least, room: FittingShares { now, .. }, .. } = self;
        let (class, even_idle) = (wanted.class, self.even_idle());
        let (reason, unblock) = if self.has_device(|node, _| !node.wiring.rdma_gbits.is_empty()) {
            let by_functions = self.has_device(|node, _| !node.wiring.rdma_functions.is_empty());
            let whole = if by_functions { ", in whole virtual functions" } else { "" };
            (
                format!(
                    "{donor} has room for {now} of {least} shares on one node, or on nodes with {gbits} Gbit/s free on \
                     one network{whole}{even_idle}"
                ),
                self.wait_or("ask for less bandwidth, or for what fits on one node"),
            )
        } else {
            (
                format!("{donor} does not say that nodes with devices of class {class} have networks for RDMA"),
                "ask for what fits on one node, or without RDMA, or ask its owner to say so in the inventory"
                    .to_owned(),
            )
        };
        obstacle(self.cure(), "no-rdma", reason, unblock)
    }

    /// Whether the donor has a device of the class for which `test` holds.
    fn has_device(&self, test: impl Fn(&Node, &Device) -> bool) -> bool {
        let any_on_node = |node: &Node, classes: &[Option<ClassName>]| {
            let mut devices = node.devices.iter().zip(classes);
            devices.any(|(device, class)| class.as_ref() == Some(self.wanted.class) && test(node, device))
        };
        self.snapshot.nodes(self.donor).any(|(_, node, classes)| any_on_node(node, classes))
    }

    /// Waiting helps if the idle donor has room.
    fn cure(&self) -> Cure {
        if self.room.ever.min(self.together) < self.least { Cure::Change } else { Cure::Waiting }
    }

    /// The remedy: to wait, if that can help, or `instead`.
    fn wait_or(&self, instead: &str) -> String {
        let Self { least, room: FittingShares { ever, .. }, together, .. } = *self;
        if together < least && together > 0 && together < ever {
            format!("ask for at most {together} shares, or {instead}")
        } else if ever.min(together) < least {
            instead.to_owned()
        } else {
            format!("wait until more is free, or {instead}")
        }
    }

    /// The end of a reason: the room at the idle donor, if that is too small as well.
    fn even_idle(&self) -> String {
        let Self { least, room: FittingShares { ever, .. }, together, .. } = *self;
        if together < ever.min(least) {
            format!(", and, with all that is asked for together, for {together} when idle")
        } else if ever < least {
            format!(", and for {ever} when idle")
        } else {
            String::new()
        }
    }
}

/// Fits `wanted` under another topology; on failure, returns the room for it.
fn ask(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    topology: Topology,
) -> Result<Placement, FittingShares> {
    match fit(snapshot, donor, &Wanted { topology, ..*wanted }, &mut MigValues::default()) {
        Fit::Fits { placement, .. } => Ok(placement),
        Fit::Lacks { now, ever } => Err(FittingShares { now, ever }),
    }
}
