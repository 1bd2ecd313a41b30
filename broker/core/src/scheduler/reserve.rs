//! Finds the earliest start of a request that fits nowhere now: which lease end makes room, and where.
//!
//! A request that has waited long enough gets that room reserved. Others may pass it only without delaying it: they end
//! before it starts, or they use none of the reserved capacity. This is EASY backfilling (Lifka, JSSPP 1995), with one
//! reservation at a time; Mu'alem and Feitelson (IEEE TPDS 12(6), 2001) compare it with reservations for all.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{AgreementSides, LeaseUse};
use comity_types::{ClusterId, LeaseId, RequestId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::spread::{Found, spread};
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::fit;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::release::fits_after_release;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::notice::end_if_reclaimed;

/// Capacity reserved for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The request that holds the reservation.
    pub request: RequestId,
    /// When the request can start if no lease is renewed and no donor withdraws capacity.
    pub at: Timestamp,
    /// Where the request can start; several donors for a gang that is spread.
    pub donors: Vec<ClusterId>,
}

/// A time and place at which a request can start.
pub(crate) struct Start {
    pub(crate) at: Timestamp,
    pub(crate) found: Found,
}

impl Start {
    pub(crate) fn donors(&self) -> Vec<ClusterId> {
        self.found.iter().map(|part| part.placement.donor.clone()).collect()
    }
}

/// The capacity held by leases, sorted by end. A lease that is not active yet may use up its hold and then its full
/// term; a lease that is ending ends now.
pub(crate) fn held_by_leases(state: &State) -> Vec<HeldCapacity<'_>> {
    held_after_reclaims(state, &[])
}

/// Like [`held_by_leases`], as if `reclaims` had begun now.
pub(crate) fn held_after_reclaims<'a>(state: &'a State, reclaims: &[ProposedReclaim]) -> Vec<HeldCapacity<'a>> {
    let leases = lease_ends(state, reclaims).into_iter();
    let mut held: Vec<HeldCapacity<'_>> =
        leases.map(|(id, lease, end)| HeldCapacity::of_lease(id, lease, end)).collect();
    held.sort_by_key(|held| held.end);
    held
}

/// Leases that occupy capacity, by id, with the latest end of each if `reclaims` begin now.
pub(crate) fn lease_ends<'a>(state: &'a State, reclaims: &[ProposedReclaim]) -> Vec<(LeaseId, &'a Lease, Timestamp)> {
    let reasons: BTreeMap<LeaseId, &ReclaimReason> =
        reclaims.iter().map(|reclaim| (reclaim.lease, &reclaim.reason)).collect();
    let end = |id: LeaseId, lease: &Lease| match reasons.get(&id) {
        Some(reason) => end_if_reclaimed(state, lease, reason),
        None => lease.latest_end(state.log_time),
    };
    let leases = state.live_leases().filter(|(_, lease)| lease.occupies());
    leases.map(|(id, lease)| (id, lease, end(id, lease))).collect()
}

/// The latest end of a placement made at `at`.
pub(crate) fn end_if_started(state: &State, at: Timestamp, duration: Millis) -> Timestamp {
    at.after(state.settings().hold).after(duration)
}

/// The latest end of a placement made now.
pub(crate) fn end_if_placed_now(state: &State, duration: Millis) -> Timestamp {
    end_if_started(state, state.log_time, duration)
}

/// The earliest start of `spec` as the capacity in `held`, which is sorted by end, is released; `None` if no end makes
/// room. Policy and donor states count as of now, reservations of policy at the start.
pub(crate) fn earliest_start(snapshot: &Snapshot<'_>, held: &[HeldCapacity<'_>], spec: &RequestSpec) -> Option<Start> {
    let institution = snapshot.bundle.tenants.get(spec.tenant.as_str()).map_or("", |t| t.spec.institution.as_str());
    let agreements: BTreeSet<&str> = snapshot
        .bundle
        .agreements
        .values()
        .filter(|agreement| {
            let (AgreementSides::Mutual(borrowers) | AgreementSides::OneWay { borrowers, .. }) = &agreement.spec.sides;
            borrowers.contains(institution)
        })
        .map(|agreement| agreement.name.as_str())
        .collect();
    let peers = snapshot.bundle.cohort_peers(spec.tenant.as_str());
    let mut best = earliest_start_spread(snapshot, held, spec);
    for donor in donors(snapshot.state, spec) {
        // Relevant at this donor: capacity held there, and usage that counts against the tenant's limits.
        let is_relevant = |counts: &LeaseUse<'_>| {
            counts.donor == donor.as_str()
                || counts.institution == institution
                || peers.tenants.contains(counts.tenant)
                || peers.institutions.contains(counts.institution)
                || counts.agreement.is_some_and(|agreement| agreements.contains(agreement))
        };
        let relevant: Vec<&HeldCapacity<'_>> = held.iter().filter(|held| is_relevant(&held.counts)).collect();
        let sooner = |held: &&&HeldCapacity<'_>| best.as_ref().is_none_or(|best| held.end < best.at);
        let all = relevant.iter().take_while(|held| sooner(held)).count();
        let fits = |snapshot: &Snapshot<'_>, released: &[&HeldCapacity<'_>]| {
            fits_after_release(snapshot, released, spec, donor)
        };
        let found = first_start(snapshot, &relevant[..all], &[donor], fits);
        let Some((at, found)) = found else { continue };
        if best.as_ref().is_none_or(|best| at < best.at) {
            best = Some(Start { at, found: vec![found] });
        }
    }
    best
}

/// The earliest start at `donors` as `held`, which is sorted by end, is released, with the result of `fits`.
///
/// If one of the donors keeps GPUs for somebody at some times: of the times at which leases or windows of reservations
/// end, once there is room, the first at which the request may start.
fn first_start<T>(
    snapshot: &Snapshot<'_>,
    held: &[&HeldCapacity<'_>],
    donors: &[&ClusterId],
    fits: impl Fn(&Snapshot<'_>, &[&HeldCapacity<'_>]) -> Option<T>,
) -> Option<(Timestamp, T)> {
    /// Ends of leases, and as many of windows, at which a start is tried. Each costs a search.
    const MAX_TRIED: usize = 32;
    let released_at = |releases: usize| {
        let last = releases.checked_sub(1).and_then(|last| held.get(last));
        last.map_or(snapshot.state.log_time, |held| held.end)
    };
    let mut keep = donors.iter().filter(|donor| snapshot.bundle.has_reservations_at(donor.as_str())).peekable();
    if keep.peek().is_none() {
        let (releases, found) = fewest_releases(held.len(), |releases| fits(snapshot, &held[..releases]))?;
        return Some((released_at(releases), found));
    }
    let mut alone = snapshot.clone();
    alone.kept.ignored = true;
    let (releases, _) = fewest_releases(held.len(), |releases| fits(&alone, &held[..releases]))?;
    let first = released_at(releases);
    let lease_ends: BTreeSet<Timestamp> = held[releases..].iter().map(|held| held.end).collect();
    let window_ends: BTreeSet<Timestamp> = keep.flat_map(|donor| snapshot.kept_ends_at(donor, first)).collect();
    let tried = |ends: BTreeSet<Timestamp>| ends.into_iter().take(MAX_TRIED);
    let starts: BTreeSet<Timestamp> = tried(lease_ends).chain(tried(window_ends)).chain([first]).collect();
    starts.into_iter().find_map(|at| {
        let mut then = snapshot.clone();
        then.kept.starts_at = Some(at);
        let released = held.partition_point(|held| held.end <= at).max(releases);
        Some((at, fits(&then, &held[..released])?))
    })
}

/// The fewest of `all` releases that make room, with the result of `fits`; `None` if even all do not. More room never
/// hurts, so bisection works. It starts with small numbers: few releases usually suffice, and a check costs as much as
/// it releases.
fn fewest_releases<T>(all: usize, mut fits: impl FnMut(usize) -> Option<T>) -> Option<(usize, T)> {
    let (mut least, mut most, mut found) = (0, all, fits(all)?);
    while least < most {
        let middle = least.midpoint(most).min(2 * least);
        match fits(middle) {
            Some(sooner) => (most, found) = (middle, sooner),
            None => least = middle + 1,
        }
    }
    Some((most, found))
}

/// The earliest start spread over several donors, if the request allows that.
fn earliest_start_spread(snapshot: &Snapshot<'_>, held: &[HeldCapacity<'_>], spec: &RequestSpec) -> Option<Start> {
    if !spec.spread_donors {
        return None;
    }
    let fits = |snapshot: &Snapshot<'_>, released: &[&HeldCapacity<'_>]| {
        let (mut snapshot, mut mig_values) = (snapshot.clone(), MigValues::default());
        released.iter().for_each(|held| snapshot.release(held));
        spread(&snapshot, spec, None, &mut |snapshot, donor, wanted| fit(snapshot, donor, wanted, &mut mig_values))
    };
    let all: Vec<&HeldCapacity<'_>> = held.iter().collect();
    let lenders: Vec<&ClusterId> = donors(snapshot.state, spec).filter(|donor| spec.allows(donor)).collect();
    first_start(snapshot, &all, &lenders, fits).map(|(at, found)| Start { at, found })
}

#[cfg(test)]
mod tests {
    use super::fewest_releases;

    #[test]
    fn bisection_never_tries_more_than_twice_the_releases_needed() {
        for all in 0..70 {
            for needed in 0..=all {
                let mut looked_at = Vec::new();
                let found = fewest_releases(all, |releases| {
                    looked_at.push(releases);
                    (releases >= needed).then_some(releases)
                });
                assert_eq!(found, Some((needed, needed)), "{needed} of {all}");
                assert!(
                    looked_at[1..].iter().all(|releases| *releases <= 2 * needed),
                    "{needed} of {all}: {looked_at:?}"
                );
            }
            assert_eq!(fewest_releases(all, |_| None::<()>), None);
        }
    }
}
