//! Proposes reclaims on behalf of donors: for failures, withdrawn terms, local need, lending limits and reservations.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, LeaseId, LeaseState};

use crate::feasibility::is_still_needed;
use crate::feasibility::reclaim_checks::failed::{failures, may_reclaim_urgently};
use crate::feasibility::reclaim_checks::kept::{self, KeptNeed};
use crate::feasibility::reclaim_checks::limit;
use crate::feasibility::reclaim_checks::need::{Need, freed_for_local_work};
use crate::feasibility::reclaim_checks::reclaim_budget::{ReachedLimit, ReclaimBudget};
use crate::feasibility::reclaim_checks::terms::{withdrawal_of, withdrawn};
use crate::model::lease::Lease;
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::scheduler::victims::{Victim, choose_victims};
use crate::state::State;

/// A need must last this long before leases are reclaimed for it: a short-lived pod needs nothing back.
const NEED_MUST_LAST: Millis = Millis::from_secs(5);
/// Unchanged donors are rechecked at this interval, since policy depends on dates.
const RECHECK_INTERVAL: Millis = Millis::from_mins(1);

/// Checks donors repeatedly, and skips those that have not changed.
#[derive(Clone, Debug, Default)]
pub struct Reclaimer {
    policy: String,
    checks: BTreeMap<ClusterId, DonorCheck>,
    /// Total shift of log time by re-bases at the last check.
    shift_ms: i64,
}

/// The last check of one donor.
#[derive(Clone, Debug)]
struct DonorCheck {
    fingerprint: DonorFingerprint,
    at: Timestamp,
    /// Start of its current need.
    needs_since: Option<Timestamp>,
}

/// Counters that change whenever the check of a donor may give another result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DonorFingerprint {
    offer_generation: u64,
    occupancy_changes: u64,
    /// Leases being reclaimed in the whole federation.
    reclaiming: usize,
}

impl Reclaimer {
    /// The leases to reclaim at `now`, which must not be before log time. A failure, and a policy that stops leases, reclaim
    /// them at once, another need only after 5 seconds without a break.
    pub fn due_reclaims(&mut self, state: &State, now: Timestamp) -> Vec<ProposedReclaim> {
        let hash = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        if self.policy != hash {
            hash.clone_into(&mut self.policy);
            self.checks.clear();
        }
        if self.shift_ms != state.time_shift_ms {
            self.shift_ms = state.time_shift_ms;
            self.checks.clear();
        }
        self.checks.retain(|donor, _| state.clusters.contains_key(donor));
        let mut all = Vec::new();
        for (donor, cluster) in &state.clusters {
            let Some(offer) = &cluster.offer else { continue };
            let fingerprint = DonorFingerprint {
                offer_generation: offer.generation,
                occupancy_changes: state.occupancy().changes(donor).count(),
                reclaiming: state.derived.reclaiming.len(),
            };
            let before = self.checks.get(donor);
            let same = before.is_some_and(|check| {
                check.fingerprint == fingerprint
                    && check.needs_since.is_none()
                    && now.since(check.at) < RECHECK_INTERVAL
            });
            if same {
                continue;
            }
            let is_urgent = |reclaim: &ProposedReclaim| reclaim.reason.is_failure() || reclaim.reason.is_stop();
            let (urgent, found): (Vec<_>, Vec<_>) = reclaims_at(state, donor, now).into_iter().partition(is_urgent);
            // One command may not take all that is urgent: the rest follows with the next.
            let at = if urgent.is_empty() { now } else { Timestamp::default() };
            let needs_since = (!found.is_empty()).then(|| before.and_then(|check| check.needs_since).unwrap_or(now));
            self.checks.insert(donor.clone(), DonorCheck { fingerprint, at, needs_since });
            // Waiting does not help a failed lease, and a lease spared in time has lost nothing.
            all.extend(urgent);
            if needs_since.is_some_and(|since| now.since(since) >= NEED_MUST_LAST) {
                all.extend(found);
            }
            if all.len() >= MAX_RECLAIMS_PER_COMMAND {
                break;
            }
        }
        all.truncate(MAX_RECLAIMS_PER_COMMAND);
        all
    }

    /// When a pending need has lasted long enough; `None` without one. Call [`due_reclaims`](Self::due_reclaims) then,
    /// even without a change.
    #[must_use]
    pub fn next_due_at(&self) -> Option<Timestamp> {
        self.checks.values().filter_map(|check| check.needs_since).map(|since| since.after(NEED_MUST_LAST)).min()
    }
}

/// The leases to reclaim at one donor at `now`, also for a need that has only begun. Order: failures, withdrawn terms,
/// local need as far as limits on reclaims allow, lending limit, reservations.
#[must_use]
pub fn reclaims_at(state: &State, donor: &ClusterId, now: Timestamp) -> Vec<ProposedReclaim> {
    reclaims_for_donor(state, donor, now).proposed
}

/// Local need of a donor that waits, because a limit on reclaims protects the leases in its way.
#[must_use]
pub fn limited_need(state: &State, donor: &ClusterId, now: Timestamp) -> Option<ReachedLimit> {
    let budget = ReclaimBudget::new(state, now);
    let mut lent = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor);
    // Without a limit in force, scanning all devices for a need is pointless.
    lent.any(|(_, lease)| budget.reached(lease).is_some())
        .then(|| reclaims_for_donor(state, donor, now).limit)
        .flatten()
}

/// Donors whose local need waits because of a limit on reclaims.
pub fn limited_donors(state: &State) -> impl Iterator<Item = &ClusterId> {
    state.clusters.keys().filter(|donor| limited_need(state, donor, state.log_time).is_some())
}

/// Reclaims of one donor.
struct DonorReclaims {
    proposed: Vec<ProposedReclaim>,
    /// The limit that keeps local need from being met, if one does.
    limit: Option<ReachedLimit>,
}

fn reclaims_for_donor(state: &State, donor: &ClusterId, now: Timestamp) -> DonorReclaims {
    let lent: Vec<(LeaseId, &Lease)> =
        state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor && lends(lease)).collect();
    let mut gone = freed_for_local_work(state, donor);
    let (mut reclaims, mut rest) = (Vec::new(), Vec::new());
    for (id, reason) in failures(state, donor) {
        reclaims.push(ProposedReclaim { lease: id, reason });
        gone.insert(id);
    }
    let failed: BTreeSet<LeaseId> = reclaims.iter().map(|reclaim| reclaim.lease).collect();
    for (id, lease) in lent.into_iter().filter(|(id, _)| !failed.contains(id)) {
        let reason = withdrawal_of(state, lease, now).map(|found| withdrawn(&found));
        let is_free = !gone.contains(&id) && matches!(lease.state, LeaseState::Active | LeaseState::Suspect);
        match reason {
            Some(reason) if is_free || (reason.is_stop() && may_reclaim_urgently(lease, &reason)) => {
                reclaims.push(ProposedReclaim { lease: id, reason });
                gone.insert(id);
            }
            _ if is_free => rest.push(Victim::of(state, id, lease)),
            _ => {}
        }
    }
    // Without leases to reclaim, scanning all devices for a need is pointless.
    let need = if rest.is_empty() { None } else { Need::of(state, donor) };
    let mut limit = None;
    if let Some(need) = need {
        let candidates: Vec<Victim<'_>> =
            rest.iter().filter(|victim| need.holds_offered_devices(victim.id)).copied().collect();
        let mut budget = ReclaimBudget::new(state, now);
        let relief = allowed_relief(candidates.clone(), &mut gone, &mut budget, &|gone| need.shortage_milli(gone));
        for id in relief {
            reclaims.push(ProposedReclaim { lease: id, reason: ReclaimReason::LocalNeed });
        }
        limit = limit_of_relief(&candidates, &gone, &budget, &|gone| need.shortage_milli(gone));
    }
    rest.retain(|victim| !gone.contains(&victim.id));
    if let Some(reason) = limit::reason(state, donor) {
        if reason.is_stop() {
            let proposed: BTreeSet<LeaseId> = reclaims.iter().map(|reclaim| reclaim.lease).collect();
            let noticed = limit::noticed(state, donor).filter(|(id, lease)| {
                !proposed.contains(id) && may_reclaim_urgently(lease, &reason) && is_still_needed(state, *id)
            });
            reclaims.extend(noticed.map(|(lease, _)| ProposedReclaim { lease, reason: reason.clone() }));
        }
        for id in cheapest_relief(rest.clone(), &mut gone, &|gone| limit::excess_milli(state, donor, gone)) {
            reclaims.push(ProposedReclaim { lease: id, reason: reason.clone() });
        }
    }
    if let Some(need) = KeptNeed::of(state, donor, now) {
        rest.retain(|victim| !gone.contains(&victim.id) && kept::may_reclaim(state, victim.lease));
        for id in cheapest_relief(rest, &mut gone, &|gone| need.shortage_milli(gone)) {
            reclaims.push(ProposedReclaim { lease: id, reason: kept::reason() });
        }
    }
    DonorReclaims { proposed: reclaims, limit }
}

/// Whether a lease has not begun to end.
fn lends(lease: &Lease) -> bool {
    !matches!(lease.state, LeaseState::Ending | LeaseState::Ended)
}

/// Like [`cheapest_relief`], with the leases that limits on reclaims allow.
fn allowed_relief<'a>(
    mut candidates: Vec<Victim<'a>>,
    gone: &mut BTreeSet<LeaseId>,
    budget: &mut ReclaimBudget<'a>,
    short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
) -> Vec<LeaseId> {
    let mut allowed = Vec::new();
    loop {
        candidates.retain(|victim| !gone.contains(&victim.id) && budget.reached(victim.lease).is_none());
        let found = cheapest_relief(candidates.clone(), &mut gone.clone(), short);
        let before = allowed.len();
        for victim in found.iter().filter_map(|id| candidates.iter().find(|victim| victim.id == *id)) {
            if budget.take(victim.lease) {
                gone.insert(victim.id);
                allowed.push(victim.id);
            }
        }
        if allowed.len() - before == found.len() {
            break;
        }
    }
    // A lease found later may make an earlier one superfluous.
    let least = short(gone);
    allowed.retain(|id| {
        gone.remove(id);
        let needed = short(gone) > least;
        if needed {
            gone.insert(*id);
        }
        needed
    });
    allowed
}

/// The limit that ends first, of those that protect a lease whose end would reduce the shortage further.
fn limit_of_relief(
    candidates: &[Victim<'_>],
    gone: &BTreeSet<LeaseId>,
    budget: &ReclaimBudget<'_>,
    short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
) -> Option<ReachedLimit> {
    let now = short(gone);
    let protected = candidates.iter().filter(|victim| now > 0 && !gone.contains(&victim.id));
    let reached = protected.filter_map(|victim| {
        let limit = budget.reached(victim.lease)?;
        let without: BTreeSet<LeaseId> = gone.iter().copied().chain([victim.id]).collect();
        (short(&without) < now).then_some(limit)
    });
    reached.min_by_key(|limit| (limit.until.is_none(), limit.until))
}

/// The cheapest leases whose reclaim reduces a shortage as far as reclaiming all candidates would. Adds them to `gone`.
fn cheapest_relief(
    mut candidates: Vec<Victim<'_>>,
    gone: &mut BTreeSet<LeaseId>,
    short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
) -> Vec<LeaseId> {
    let now = short(gone);
    if now == 0 {
        return Vec::new();
    }
    let with = |set: &[Victim<'_>]| short(&gone.iter().copied().chain(set.iter().map(|victim| victim.id)).collect());
    // The shortage is a sum over pools, so a lease that alone relieves nothing relieves nothing among others.
    candidates.retain(|victim| with(&[*victim]) < now);
    let least = with(&candidates);
    let chosen = choose_victims(candidates, &mut |set| with(set) == least);
    let chosen: Vec<LeaseId> = chosen.into_iter().flat_map(|set| set.victims).map(|victim| victim.id).collect();
    gone.extend(&chosen);
    chosen
}
