//! Preemption: finds the leases to reclaim for a request that may preempt.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, LeaseId, NodeId, RequestId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::preemption::{
    departing_leases, donors_of, is_making_room, may_be_preempted, preempting_priority, yields_to_priority,
};
use crate::feasibility::reclaim_checks::reclaim_budget::{ReachedLimit, ReclaimBudget};
use crate::feasibility::release::{fits_when_gone, last_end};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::scheduler::victims::{MAX_EXACT, Victim, VictimSet, choose_victims};
use crate::state::notice::end_if_reclaimed_at;

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

/// Whether a search keeps the limits on reclaims.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimLimits {
    Kept,
    /// To tell whether only they forbid a preemption.
    Ignored,
}

/// The room for a request that costs others least, over all donors without `planned` reclaims. `None` if the request
/// may not preempt, if no donor can make room, if limits on reclaims forbid it, or if waiting for leases still being
/// set up would cost less. A donor makes room for one request at a time.
pub(crate) fn cheapest_room<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    planned: &[ProposedReclaim],
) -> Option<Room<'a>> {
    RoomSearch { planned, ..RoomSearch::new(snapshot, spec, &BTreeSet::new())? }.cheapest()
}

/// Like [`cheapest_room`], by reclaims at `from`, in a `snapshot` that has released the leases in `gone`.
pub(crate) fn cheapest_room_after<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    gone: &BTreeSet<LeaseId>,
    from: Timestamp,
) -> Option<Room<'a>> {
    RoomSearch { from, ..RoomSearch::new(snapshot, spec, gone)? }.cheapest()
}

/// The donor that would make room for a request but for a limit on reclaims, and that limit.
pub(crate) fn limited_room<'a>(snapshot: &Snapshot<'a>, spec: &RequestSpec) -> Option<(&'a ClusterId, ReachedLimit)> {
    let (state, nothing) = (snapshot.state, BTreeSet::new());
    let search = RoomSearch::new(snapshot, spec, &nothing)?;
    let room = RoomSearch { limits: ReclaimLimits::Ignored, ..search }.cheapest()?;
    let mut budget = ReclaimBudget::new(state, state.log_time);
    let reached = room.set.victims.iter().find_map(|victim| {
        let reached = budget.reached(victim.lease);
        budget.take(victim.lease);
        reached
    });
    Some((room.donor, reached?))
}

/// A search for leases that make room for a request.
struct RoomSearch<'s, 'a> {
    snapshot: &'s Snapshot<'a>,
    spec: &'s RequestSpec,
    /// Priority of the request.
    value: u32,
    /// Leases that the snapshot has released.
    gone: &'s BTreeSet<LeaseId>,
    /// Reclaims of the same plan.
    planned: &'s [ProposedReclaim],
    limits: ReclaimLimits,
    /// When leases are reclaimed.
    from: Timestamp,
}

impl<'s, 'a> RoomSearch<'s, 'a> {
    /// `None` if the request may not preempt.
    fn new(snapshot: &'s Snapshot<'a>, spec: &'s RequestSpec, gone: &'s BTreeSet<LeaseId>) -> Option<Self> {
        let value = preempting_priority(snapshot.state, spec)?;
        let from = snapshot.state.log_time;
        Some(Self { snapshot, spec, value, gone, planned: &[], limits: ReclaimLimits::Kept, from })
    }

    fn cheapest(&self) -> Option<Room<'a>> {
        let state = self.snapshot.state;
        let busy = donors_of(state, self.planned);
        let mut best: Option<Room<'a>> = None;
        for donor in state.clusters.keys().filter(|donor| donors(state, self.spec).any(|other| other == *donor)) {
            if busy.contains(donor) || is_making_room(state, donor) {
                continue;
            }
            if let Some(room) = self.at_donor(donor)
                && best.as_ref().is_none_or(|best| room.set.cost < best.set.cost)
            {
                best = Some(room);
            }
        }
        best.filter(|room| !room.needs_pending)
    }

    fn at_donor(&self, donor: &'a ClusterId) -> Option<Room<'a>> {
        let (state, value) = (self.snapshot.state, self.value);
        let leases =
            state.leases_of(donor).filter(|(id, lease)| lease.placement.donor == *donor && !self.gone.contains(id));
        let yielding = leases.filter(|(_, lease)| yields_to_priority(state, lease, value));
        let (held, active): (Vec<_>, Vec<_>) = yielding
            .filter(|(_, lease)| lease.state.is_held() || may_be_preempted(state, lease, value))
            .partition(|(_, lease)| lease.state.is_held());
        let victims = |leases: &[(LeaseId, &'a Lease)]| -> Vec<Victim<'a>> {
            leases.iter().map(|(id, lease)| Victim::of(state, *id, lease)).collect()
        };
        let departing: Vec<(LeaseId, &Lease)> =
            departing_leases(state, donor).filter(|(id, _)| !self.gone.contains(id)).collect();
        let now = self.allowed_victims(donor, &departing, victims(&active));
        let now = now.map(|set| Room { donor, set, needs_pending: false });
        if held.is_empty() {
            return now;
        }
        let soon = self.allowed_victims(donor, &departing, victims(&[active, held].concat()));
        let soon = soon.map(|set| Room { donor, set, needs_pending: true });
        match (now, soon) {
            (Some(now), Some(soon)) => Some(if soon.set.cost.takes_less_than(&now.set.cost) { soon } else { now }),
            (now, soon) => now.or(soon),
        }
    }

    /// The cheapest of `candidates` that make room and that limits on reclaims allow together. Where limits forbid the
    /// cheapest set, only the largest leases within the limits remain candidates, so a set may be missed.
    fn allowed_victims(
        &self,
        donor: &ClusterId,
        departing: &[(LeaseId, &Lease)],
        mut candidates: Vec<Victim<'a>>,
    ) -> Option<VictimSet<'a>> {
        if self.limits == ReclaimLimits::Ignored {
            return self.cheapest_victims(donor, departing, candidates);
        }
        let budget = ReclaimBudget::beside(self.snapshot.state, self.planned);
        candidates.retain(|victim| budget.reached(victim.lease).is_none());
        let found = self.cheapest_victims(donor, departing, candidates.clone())?;
        if budget.clone().take_all(found.victims.iter().map(|victim| victim.lease)).is_ok() {
            return Some(found);
        }
        let mut within = budget;
        candidates.sort_by(|one, other| {
            other.lease.placement.milli().cmp(&one.lease.placement.milli()).then_with(|| one.cmp_preference(other))
        });
        candidates.retain(|victim| within.take(victim.lease));
        self.cheapest_victims(donor, departing, candidates)
    }

    /// The cheapest of `candidates` whose reclaim, alongside the departing leases, makes room at a donor.
    fn cheapest_victims(
        &self,
        donor: &ClusterId,
        departing: &[(LeaseId, &Lease)],
        candidates: Vec<Victim<'a>>,
    ) -> Option<VictimSet<'a>> {
        if candidates.is_empty() {
            return None;
        }
        let fits = |set: &[Victim<'a>], start: Timestamp| {
            let gone = departing.iter().copied().chain(set.iter().map(|victim| (victim.id, victim.lease)));
            fits_when_gone(self.snapshot, self.spec, donor, gone, start).is_some()
        };
        // The same start for all sets, so that no lease yields only because the request starts later then.
        let start = self.start(departing, &candidates);
        let mut enough = |set: &[Victim<'a>]| fits(set, start);
        // The request fits once departing leases are gone, or not even without every candidate.
        if enough(&[]) || !enough(&candidates) {
            return None;
        }
        let found = if candidates.len() <= MAX_EXACT {
            choose_victims(candidates, &mut enough)
        } else {
            cheapest_on_one_node(&candidates, &mut enough).or_else(|| {
                let mut candidates = candidates;
                candidates.sort_by(Victim::cmp_preference);
                candidates.truncate(MAX_TOGETHER);
                choose_victims(candidates, &mut enough)
            })
        };
        // Some notices are longer than those of the set.
        found.filter(|set| {
            let own_start = self.start(departing, &set.victims);
            own_start == start || fits(&set.victims, own_start) && !fits(&[], own_start)
        })
    }

    /// When the request starts if these victims are reclaimed.
    fn start(&self, departing: &[(LeaseId, &Lease)], victims: &[Victim<'a>]) -> Timestamp {
        let state = self.snapshot.state;
        // The notice does not depend on the request.
        let reason = ReclaimReason::Preempted { by: RequestId(0) };
        let ends = victims.iter().map(|victim| end_if_reclaimed_at(state, victim.lease, &reason, self.from));
        ends.fold(self.from.max(last_end(state, departing.iter().copied())), Timestamp::max)
    }
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
