//! Room for a request that may preempt: whose place it takes, and where.

use std::collections::{BTreeMap, BTreeSet};

use super::EXACT_MOST;
use super::choose::{Cost, Victim, choose};
use crate::demand::RequestSpec;
use crate::id::{ClusterId, LeaseId, NodeId, RequestId};
use crate::lease::{Lease, LeaseState};
use crate::request::Request;
use crate::scheduler::plan::donors;
use crate::scheduler::reserve::released;
use crate::scheduler::verdict::Candidate;
use crate::scheduler::view::{Held, View};
use crate::state::State;
use crate::time::Timestamp;

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

/// Leases of a donor that still take room and give it back soon: those that end and those that are being reclaimed.
pub(crate) fn going<'a>(state: &'a State, donor: &'a ClusterId) -> impl Iterator<Item = (LeaseId, &'a Lease)> {
    state.leases_of(donor).filter(move |(_, lease)| {
        lease.placement.donor == *donor
            && lease.occupies()
            && matches!(lease.state, LeaseState::Ending | LeaseState::Reclaiming)
    })
}

/// The waiting request that a lease makes room for.
pub(crate) fn for_whom(state: &State, lease: &Lease) -> Option<RequestId> {
    let by = lease.reclaim.as_ref()?.reason.for_request()?;
    state.requests.get(&by).filter(|request| request.room_at.is_some() && request.waits()).map(|_| by)
}

/// Where `spec` fits at `donor` once those are gone.
pub(crate) fn fits_when_gone<'l>(
    view: &View<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    gone: impl Iterator<Item = &'l Lease>,
) -> Option<Candidate> {
    let held = gone.map(|lease| Held { end: Timestamp(0), counts: lease.as_use(), placement: &lease.placement });
    let held: Vec<Held<'_>> = held.collect();
    released(view, &held.iter().collect::<Vec<_>>(), spec, donor)
}

/// Whether `lease` may be preempted by a request of priority `value`.
pub(super) fn may_be_preempted(state: &State, lease: &Lease, value: u32) -> bool {
    matches!(lease.state, LeaseState::Active | LeaseState::Suspect) && yields_to(state, lease, value)
}

/// Whether `lease` may be preempted so as soon as it is active.
pub(crate) fn yields_to(state: &State, lease: &Lease, value: u32) -> bool {
    let request = state.requests.get(&lease.request);
    request.is_some_and(|request| request.spec.preemptible.is_some()) && super::choose::priority(state, lease) < value
}

/// The value of a request's priority class, if its requests may preempt.
pub(crate) fn preempts_as(state: &State, request: &Request) -> Option<u32> {
    let bundle = &state.policy.as_ref()?.bundle;
    let class = bundle.priorities.get(request.spec.priority.as_ref()?.as_str())?;
    class.spec.may_preempt.then_some(class.spec.value)
}

/// Whether a request may preempt.
pub(crate) fn preempts(state: &State, request: &Request) -> bool {
    preempts_as(state, request).is_some()
}

/// The room for a request that costs others least, over all donors but those that are busy; `None` if it may not
/// preempt, or no donor can make room, or less would be taken in a moment, of leases that are still set up. One request
/// at a time gets room at one donor.
pub(crate) fn room_for<'a>(view: &View<'a>, request: &Request, busy: &BTreeSet<&ClusterId>) -> Option<Room<'a>> {
    room_later(view, request, busy, &BTreeSet::new())
}

/// The same where `gone` have ended before, as `view` has it.
pub(crate) fn room_later<'a>(
    view: &View<'a>,
    request: &Request,
    busy: &BTreeSet<&ClusterId>,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = view.state;
    let value = preempts_as(state, request)?;
    let mut best: Option<Room<'a>> = None;
    for donor in state.clusters.keys().filter(|donor| donors(state, &request.spec).any(|other| other == *donor)) {
        if busy.contains(donor) || going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some()) {
            continue;
        }
        if let Some(room) = room_at(view, (request, value), donor, gone)
            && best.as_ref().is_none_or(|best| room.cost < best.cost)
        {
            best = Some(room);
        }
    }
    best.filter(|room| !room.comes)
}

fn room_at<'a>(
    view: &View<'a>,
    (request, value): (&Request, u32),
    donor: &'a ClusterId,
    gone: &BTreeSet<LeaseId>,
) -> Option<Room<'a>> {
    let state = view.state;
    let leases = state.leases_of(donor).filter(|(id, lease)| lease.placement.donor == *donor && !gone.contains(id));
    let yielding = leases.filter(|(_, lease)| yields_to(state, lease, value));
    let (held, active): (Vec<_>, Vec<_>) = yielding
        .filter(|(_, lease)| lease.state.is_held() || may_be_preempted(state, lease, value))
        .partition(|(_, lease)| lease.state.is_held());
    let victims = |leases: &[(LeaseId, &'a Lease)]| -> Vec<Victim<'a>> {
        leases.iter().map(|(id, lease)| Victim::of(state, *id, lease)).collect()
    };
    let goes: Vec<&Lease> = going(state, donor).filter(|(id, _)| !gone.contains(id)).map(|(_, lease)| lease).collect();
    let now = room_of(view, request, (donor, &goes), victims(&active)).map(|(cost, victims)| Room {
        donor,
        cost,
        victims,
        comes: false,
    });
    if held.is_empty() {
        return now;
    }
    let soon = room_of(view, request, (donor, &goes), victims(&[active, held].concat()));
    let soon = soon.map(|(cost, victims)| Room { donor, cost, victims, comes: true });
    match (now, soon) {
        (Some(now), Some(soon)) => Some(if soon.cost.takes_less_than(&now.cost) { soon } else { now }),
        (now, soon) => now.or(soon),
    }
}

/// The cheapest room that some of `candidates` make at a donor, beside what goes already.
fn room_of<'a>(
    view: &View<'a>,
    request: &Request,
    (donor, going): (&ClusterId, &[&Lease]),
    candidates: Vec<Victim<'a>>,
) -> Option<(Cost, Vec<Victim<'a>>)> {
    if candidates.is_empty() {
        return None;
    }
    let mut enough = |set: &[Victim<'a>]| {
        let gone = going.iter().copied().chain(set.iter().map(|victim| victim.lease));
        fits_when_gone(view, &request.spec, donor, gone).is_some()
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
