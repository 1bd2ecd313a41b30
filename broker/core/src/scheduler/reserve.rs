//! When a request that fits nowhere now could start: the earliest end of leases that makes room for it, and where.
//!
//! A request that has waited long enough gets that room reserved, and others pass it only if they cannot delay it: they
//! end before it starts, or take nothing of what is reserved. That is EASY backfilling (Lifka, JSSPP 1995), with one
//! reservation at a time; Mu'alem and Feitelson (IEEE TPDS 12(6), 2001) compare it with reservations for all.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{AgreementSides, LeaseUse};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::spread::{Found, spread};
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::fit;
use crate::feasibility::release::released;
use crate::feasibility::snapshot::{Held, Snapshot};
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, LeaseId, RequestId};
use crate::model::lease::{Lease, LeaseState};
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::notice::notice;

/// Capacity that is kept for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// For which.
    pub request: RequestId,
    /// When it can start, if no lease is renewed and no donor takes anything away.
    pub at: Timestamp,
    /// Where; several of a gang that is spread.
    pub donors: Vec<ClusterId>,
}

/// Where and when a request can start.
pub(crate) struct Start {
    pub(crate) at: Timestamp,
    pub(crate) found: Found,
}

impl Start {
    /// At which donors.
    pub(crate) fn donors(&self) -> Vec<ClusterId> {
        self.found.iter().map(|part| part.placement.donor.clone()).collect()
    }
}

/// What leases hold, by end. One that is not yet active may take its hold and then its whole term; one that ends
/// already ends now.
pub(crate) fn held(state: &State) -> Vec<Held<'_>> {
    held_after(state, &[])
}

/// The same once those are being reclaimed.
pub(crate) fn held_after<'a>(state: &'a State, reclaims: &[ProposedReclaim]) -> Vec<Held<'a>> {
    let leases = ends(state, reclaims).into_iter();
    let mut held: Vec<Held<'_>> =
        leases.map(|(_, lease, end)| Held { end, counts: lease.as_use(), placement: &lease.placement }).collect();
    held.sort_by_key(|held| held.end);
    held
}

/// Leases that take something, by id, and when each ends at the latest once those are being reclaimed.
pub(crate) fn ends<'a>(state: &'a State, reclaims: &[ProposedReclaim]) -> Vec<(LeaseId, &'a Lease, Timestamp)> {
    let reasons: BTreeMap<LeaseId, &ReclaimReason> =
        reclaims.iter().map(|reclaim| (reclaim.lease, &reclaim.reason)).collect();
    let end = |id: LeaseId, lease: &Lease| match reasons.get(&id) {
        Some(reason) => end_if_reclaimed(state, lease, reason),
        None => end_of(lease, state.log_time),
    };
    let leases = state.live_leases().filter(|(_, lease)| lease.occupies());
    leases.map(|(id, lease)| (id, lease, end(id, lease))).collect()
}

/// When a lease ends at the latest if it is being reclaimed now, for this reason.
pub(crate) fn end_if_reclaimed(state: &State, lease: &Lease, reason: &ReclaimReason) -> Timestamp {
    state.log_time.after(notice(state, lease, reason)).min(end_of(lease, state.log_time))
}

/// When a lease ends at the latest, unless it is renewed.
pub(crate) fn end_of(lease: &Lease, now: Timestamp) -> Timestamp {
    let end = match lease.state {
        LeaseState::Placed | LeaseState::Connecting => lease.hold_until.after(lease.term),
        LeaseState::Active | LeaseState::Suspect | LeaseState::Reclaiming => lease.due().unwrap_or(now),
        LeaseState::Ending | LeaseState::Ended => now,
    };
    end.max(now)
}

/// When something that is placed at `at` ends at the latest.
pub(crate) fn end_of_start(state: &State, at: Timestamp, duration: Millis) -> Timestamp {
    at.after(state.settings().hold).after(duration)
}

/// When something that is placed now ends at the latest.
pub(crate) fn end_if_placed(state: &State, duration: Millis) -> Timestamp {
    end_of_start(state, state.log_time, duration)
}

/// The earliest start of `spec` under the ends of what is held, which is sorted by them; `None` if no end makes room.
/// Dates of policy and the state of donors count as they are now.
pub(crate) fn earliest(snapshot: &Snapshot<'_>, held: &[Held<'_>], spec: &RequestSpec) -> Option<Start> {
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
    let mut best = earliest_spread(snapshot, held, spec);
    for donor in donors(snapshot.state, spec) {
        // What is in the way at this donor: what is held of it, and what counts against limits of who asks.
        let matters = |counts: &LeaseUse<'_>| {
            counts.donor == donor.as_str()
                || counts.institution == institution
                || counts.agreement.is_some_and(|agreement| agreements.contains(agreement))
        };
        let in_the_way: Vec<&Held<'_>> = held.iter().filter(|held| matters(&held.counts)).collect();
        let sooner = |held: &&&Held<'_>| best.as_ref().is_none_or(|best| held.end < best.at);
        let all = in_the_way.iter().take_while(|held| sooner(held)).count();
        let fits = |many: usize| released(snapshot, &in_the_way[..many], spec, donor);
        let Some((most, found)) = fewest(all, fits) else { continue };
        let at =
            most.checked_sub(1).and_then(|last| in_the_way.get(last)).map_or(snapshot.state.log_time, |held| held.end);
        if best.as_ref().is_none_or(|best| at < best.at) {
            best = Some(Start { at, found: vec![found] });
        }
    }
    best
}

/// The fewest of `all` ends that make room, and what `fits` then; `None` if all do not. More room is never worse, so
/// they are found by halving; but few are tried before many, for mostly few do, and a look costs as much as there is to
/// be released.
fn fewest<T>(all: usize, mut fits: impl FnMut(usize) -> Option<T>) -> Option<(usize, T)> {
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

/// The earliest start on several donors, where that is allowed.
fn earliest_spread(snapshot: &Snapshot<'_>, held: &[Held<'_>], spec: &RequestSpec) -> Option<Start> {
    let mut mig_values = MigValues::default();
    let after = |many: usize| {
        let mut snapshot = snapshot.clone();
        held[..many].iter().for_each(|held| snapshot.release(held));
        spread(&snapshot, spec, None, &mut |snapshot, donor, wanted| fit(snapshot, donor, wanted, &mut mig_values))
    };
    if !spec.spread_donors {
        return None;
    }
    let (most, found) = fewest(held.len(), after)?;
    let at = most.checked_sub(1).and_then(|last| held.get(last)).map_or(snapshot.state.log_time, |held| held.end);
    Some(Start { at, found })
}

#[cfg(test)]
mod tests {
    use super::fewest;

    #[test]
    fn the_fewest_ends_are_found_without_looking_at_many_more() {
        for all in 0..70 {
            for needed in 0..=all {
                let mut looked_at = Vec::new();
                let found = fewest(all, |many| {
                    looked_at.push(many);
                    (many >= needed).then_some(many)
                });
                assert_eq!(found, Some((needed, needed)), "{needed} of {all}");
                assert!(looked_at[1..].iter().all(|many| *many <= 2 * needed), "{needed} of {all}: {looked_at:?}");
            }
            assert_eq!(fewest(all, |_| None::<()>), None);
        }
    }
}
