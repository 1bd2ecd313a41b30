//! Room for a request that may preempt: whose place it takes, and where.

use std::collections::{BTreeMap, BTreeSet};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::preemption::{for_whom, going, may_be_preempted, preempts_as, yields_to};
use crate::feasibility::release::fits_when_gone;
use crate::feasibility::snapshot::Snapshot;
use crate::model::id::{ClusterId, LeaseId, NodeId};
use crate::model::lease::Lease;
use crate::model::request::Request;
use crate::scheduler::victims::{Cost, EXACT_MOST, Victim, choose};

/// Nodes of one donor whose leases are looked at node by node.
const MAX_NODES: usize = 64;
/// Leases of one donor that are looked at together where no single node makes room.
const MAX_TOGETHER: usize = 256;

/// Leases to reclaim at one donor so that a request fits there.
pub(crate) struct Room<'a> {
    pub(crate) donor: &'a ClusterId,
    cost: Cost,
    pub(crate) victims: Vec<Victim<'a>>,
    /// Among them are some that are still set up: once they are active, less is taken than now.
    comes: bool,
}

/// The room for a request that costs others least, over all donors but those that are busy; `None` if it may not
/// preempt, or no donor can make room, or less would be taken in a moment, of leases that are still set up. One request
/// at a time gets room at one donor.
pub(crate) fn room_for<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    busy: &BTreeSet<&ClusterId>,
) -> Option<Room<'a>> {
    room_later(snapshot, request, busy, &BTreeSet::new())
}

/// The same where `gone` have ended before, as `snapshot` has it.
pub(crate) fn room_later<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    busy: &BTreeSet<&ClusterId>,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = snapshot.state;
    let value = preempts_as(state, request)?;
    let mut best: Option<Room<'a>> = None;
    for donor in state.clusters.keys().filter(|donor| donors(state, &request.spec).any(|other| other == *donor)) {
        if busy.contains(donor) || going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some()) {
            continue;
        }
        if let Some(room) = room_at(snapshot, (request, value), donor, gone)
            && best.as_ref().is_none_or(|best| room.cost < best.cost)
        {
            best = Some(room);
        }
    }
    best.filter(|room| !room.comes)
}

fn room_at<'a>(
    snapshot: &Snapshot<'a>,
    (request, value): (&Request, u32),
    donor: &'a ClusterId,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = snapshot.state;
    let leases = state.leases_of(donor).filter(|(id, lease)| lease.placement.donor == *donor && !gone.contains(id));
    let yielding = leases.filter(|(_, lease)| yields_to(state, lease, value));
    let (held, active): (Vec<_>, Vec<_>) = yielding
        .filter(|(_, lease)| lease.state.is_held() || may_be_preempted(state, lease, value))
        .partition(|(_, lease)| lease.state.is_held());
    let victims = |leases: &[(LeaseId, &'a Lease)]| -> Vec<Victim<'a>> {
        leases.iter().map(|(id, lease)| Victim::of(state, *id, lease)).collect()
    };
    let goes: Vec<&Lease> = going(state, donor).filter(|(id, _)| !gone.contains(id)).map(|(_, lease)| lease).collect();
    let now = room_of(snapshot, request, (donor, &goes), victims(&active)).map(|(cost, victims)| Room {
        donor,
        cost,
        victims,
        comes: false,
    });
    if held.is_empty() {
        return now;
    }
    let soon = room_of(snapshot, request, (donor, &goes), victims(&[active, held].concat()));
    let soon = soon.map(|(cost, victims)| Room { donor, cost, victims, comes: true });
    match (now, soon) {
        (Some(now), Some(soon)) => Some(if soon.cost.takes_less_than(&now.cost) { soon } else { now }),
        (now, soon) => now.or(soon),
    }
}

/// The cheapest room that some of `candidates` make at a donor, beside what goes already.
fn room_of<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    (donor, going): (&ClusterId, &[&Lease]),
    candidates: Vec<Victim<'a>>,
) -> Option<(Cost, Vec<Victim<'a>>)> {
    if candidates.is_empty() {
        return None;
    }
    let mut enough = |set: &[Victim<'a>]| {
        let gone = going.iter().copied().chain(set.iter().map(|victim| victim.lease));
        fits_when_gone(snapshot, &request.spec, donor, gone).is_some()
    };
    // It fits there as soon as what goes already is gone, or never.
    if enough(&[]) || !enough(&candidates) {
        return None;
    }
    if candidates.len() <= EXACT_MOST {
        return choose(candidates, &mut enough);
    }
    by_node(&candidates, &mut enough).or_else(|| {
        let mut candidates = candidates;
        candidates.sort_by(Victim::in_order);
        candidates.truncate(MAX_TOGETHER);
        choose(candidates, &mut enough)
    })
}

/// The cheapest room that the leases of one node make.
fn by_node<'a>(
    candidates: &[Victim<'a>],
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<(Cost, Vec<Victim<'a>>)> {
    let mut nodes: BTreeMap<&NodeId, Vec<Victim<'a>>> = BTreeMap::new();
    for victim in candidates {
        for node in victim.lease.placement.nodes.keys() {
            nodes.entry(node).or_default().push(*victim);
        }
    }
    let mut seen = BTreeSet::new();
    let mut best: Option<(Cost, Vec<Victim<'a>>)> = None;
    for on_node in nodes.into_values().take(MAX_NODES) {
        if !seen.insert(on_node.iter().map(|victim| victim.id).collect::<Vec<_>>()) {
            continue;
        }
        if let Some(found) = choose(on_node, enough)
            && best.as_ref().is_none_or(|(cost, _)| found.0 < *cost)
        {
            best = Some(found);
        }
    }
    best
}
