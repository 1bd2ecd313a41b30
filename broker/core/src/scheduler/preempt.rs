//! Preemption: finds the leases to reclaim for a request that may preempt.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, LeaseId, NodeId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::preemption::{
    departing_leases, is_making_room, may_be_preempted, preempting_priority, yields_to_priority,
};
use crate::feasibility::release::fits_when_gone;
use crate::feasibility::snapshot::Snapshot;
use crate::model::lease::Lease;
use crate::model::request::Request;
use crate::scheduler::victims::{MAX_EXACT, Victim, VictimSet, choose_victims};

/// Nodes of one donor that are searched one by one.
const MAX_NODES_SEARCHED: usize = 64;
/// Leases of one donor that are searched together if no single node makes room.
const MAX_TOGETHER: usize = 256;

/// Leases to reclaim at one donor so that a request fits there.
pub(crate) struct Room<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) set: VictimSet<'a>,
    /// Some victims are not active yet; once they are, reclaiming them costs less than any room available now.
    needs_pending: bool,
}

/// The room for a request that costs others least, over all donors that are not busy. `None` if the request may not
/// preempt, if no donor can make room, or if waiting for leases still being set up would cost less. A donor makes room
/// for one request at a time.
pub(crate) fn cheapest_room<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    busy: &BTreeSet<&ClusterId>,
) -> Option<Room<'a>> {
    cheapest_room_after(snapshot, request, busy, &BTreeSet::new())
}

/// Like [`cheapest_room`], in a `snapshot` that has released the leases in `gone`.
pub(crate) fn cheapest_room_after<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    busy: &BTreeSet<&ClusterId>,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = snapshot.state;
    let value = preempting_priority(state, request)?;
    let mut best: Option<Room<'a>> = None;
    for donor in state.clusters.keys().filter(|donor| donors(state, &request.spec).any(|other| other == *donor)) {
        if busy.contains(donor) || is_making_room(state, donor) {
            continue;
        }
        if let Some(room) = room_at_donor(snapshot, request, value, donor, gone)
            && best.as_ref().is_none_or(|best| room.set.cost < best.set.cost)
        {
            best = Some(room);
        }
    }
    best.filter(|room| !room.needs_pending)
}

fn room_at_donor<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    value: u32,
    donor: &'a ClusterId,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = snapshot.state;
    let leases = state.leases_of(donor).filter(|(id, lease)| lease.placement.donor == *donor && !gone.contains(id));
    let yielding = leases.filter(|(_, lease)| yields_to_priority(state, lease, value));
    let (held, active): (Vec<_>, Vec<_>) = yielding
        .filter(|(_, lease)| lease.state.is_held() || may_be_preempted(state, lease, value))
        .partition(|(_, lease)| lease.state.is_held());
    let victims = |leases: &[(LeaseId, &'a Lease)]| -> Vec<Victim<'a>> {
        leases.iter().map(|(id, lease)| Victim::of(state, *id, lease)).collect()
    };
    let departing: Vec<&Lease> =
        departing_leases(state, donor).filter(|(id, _)| !gone.contains(id)).map(|(_, lease)| lease).collect();
    let now = cheapest_victims(snapshot, request, donor, &departing, victims(&active));
    let now = now.map(|set| Room { donor, set, needs_pending: false });
    if held.is_empty() {
        return now;
    }
    let soon = cheapest_victims(snapshot, request, donor, &departing, victims(&[active, held].concat()));
    let soon = soon.map(|set| Room { donor, set, needs_pending: true });
    match (now, soon) {
        (Some(now), Some(soon)) => Some(if soon.set.cost.takes_less_than(&now.set.cost) { soon } else { now }),
        (now, soon) => now.or(soon),
    }
}

/// The cheapest of `candidates` whose reclaim, alongside the departing leases, makes room at a donor.
fn cheapest_victims<'a>(
    snapshot: &Snapshot<'a>,
    request: &Request,
    donor: &ClusterId,
    departing: &[&Lease],
    candidates: Vec<Victim<'a>>,
) -> Option<VictimSet<'a>> {
    if candidates.is_empty() {
        return None;
    }
    let mut enough = |set: &[Victim<'a>]| {
        let gone = departing.iter().copied().chain(set.iter().map(|victim| victim.lease));
        fits_when_gone(snapshot, &request.spec, donor, gone).is_some()
    };
    // The request fits once departing leases are gone, or not even without every candidate.
    if enough(&[]) || !enough(&candidates) {
        return None;
    }
    if candidates.len() <= MAX_EXACT {
        return choose_victims(candidates, &mut enough);
    }
    cheapest_on_one_node(&candidates, &mut enough).or_else(|| {
        let mut candidates = candidates;
        candidates.sort_by(Victim::cmp_preference);
        candidates.truncate(MAX_TOGETHER);
        choose_victims(candidates, &mut enough)
    })
}

/// The cheapest victims that share a node.
fn cheapest_on_one_node<'a>(
    candidates: &[Victim<'a>],
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<VictimSet<'a>> {
    let mut nodes: BTreeMap<&NodeId, Vec<Victim<'a>>> = BTreeMap::new();
    for victim in candidates {
        for node in victim.lease.placement.nodes.keys() {
            nodes.entry(node).or_default().push(*victim);
        }
    }
    let mut seen = BTreeSet::new();
    let mut best: Option<VictimSet<'a>> = None;
    for on_node in nodes.into_values().take(MAX_NODES_SEARCHED) {
        if !seen.insert(on_node.iter().map(|victim| victim.id).collect::<Vec<_>>()) {
            continue;
        }
        if let Some(found) = choose_victims(on_node, enough)
            && best.as_ref().is_none_or(|best| found.cost < best.cost)
        {
            best = Some(found);
        }
    }
    best
}
