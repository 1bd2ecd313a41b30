//! Explains that a donor has room for a request, but not with the isolation that the request asks for.

use std::collections::BTreeSet;

use comity_types::ClusterId;

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::device::room;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{GpuDemand, Isolation};
use crate::model::inventory::Sharing;

/// The obstacle, if the donor could serve the request without isolation; or, where the request would have to wait
/// anyway, if waiting cannot help. `least` shares are needed. Wiring is left aside.
pub(crate) fn not_isolated(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    least: u64,
) -> Option<Obstacle> {
    let isolation = wanted.gpus.isolation;
    if isolation == Isolation::None {
        return None;
    }
    let plain = Wanted { topology: wanted.topology.without_wiring(), ..*wanted };
    let Fit::Lacks { now, ever } = fit(snapshot, donor, &plain, &mut MigValues::default()) else { return None };
    let any = GpuDemand { isolation: Isolation::None, ..wanted.gpus.clone() };
    match fit(snapshot, donor, &Wanted { gpus: &any, ..plain }, &mut MigValues::default()) {
        Fit::Lacks { ever: without, .. } if without < least || ever >= least => return None,
        Fit::Fits { .. } | Fit::Lacks { .. } => {}
    }
    let others = less_isolated(snapshot, donor, wanted);
    let names: BTreeSet<&str> = others.iter().map(|sharing| sharing.mode().as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(" and ");
    let (class, level) = (wanted.class, isolation.as_str());
    let reason = if ever == 0 {
        format!("{donor} has no device of class {class} that serves such a share with isolation {level}, only {names}")
    } else {
        let idle = if ever < least { format!(", and for {ever} when idle") } else { String::new() };
        format!(
            "{donor} has room for {now} of {least} shares of class {class} with isolation {level} now{idle}; its other \
             devices are shared by {names}"
        )
    };
    let less = if others.iter().any(|sharing| sharing.isolation() == Isolation::Memory) {
        "ask for isolation memory, or for none"
    } else {
        "ask without isolation"
    };
    let owner = match isolation {
        Isolation::Hardware => "whole GPUs or MIG instances",
        Isolation::None | Isolation::Memory => "whole GPUs, MIG instances, or shares of MPS or HAMi",
    };
    let (cure, first) = if ever < least {
        (Cure::Change, String::new())
    } else {
        (Cure::Waiting, "wait until more is free, ".to_owned())
    };
    Some(obstacle(cure, "not-isolated", reason, format!("{first}{less}, or ask its owner to lend {owner}")))
}

/// The ways of sharing, with too little isolation, of the devices that could serve the share otherwise.
fn less_isolated<'s>(snapshot: &Snapshot<'s>, donor: &ClusterId, wanted: &Wanted<'_>) -> BTreeSet<&'s Sharing> {
    let devices = snapshot.nodes(donor).flat_map(|(_, node, classes)| node.devices.iter().zip(classes));
    let of_class = devices.filter(|(_, class)| class.as_ref() == Some(wanted.class));
    let serves = of_class.filter(|(device, _)| room(device, 0, None, &wanted.gpus.share).is_some());
    serves.map(|(device, _)| &device.sharing).filter(|sharing| sharing.isolation() < wanted.gpus.isolation).collect()
}
