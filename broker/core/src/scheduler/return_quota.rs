//! Finds the leases on borrowed quota to reclaim for a request that is within its nominal quotas.
//!
//! Only what a member borrows is reclaimed, and only if the request then starts. Any lease of a borrower may be reclaimed,
//! whatever its priority and whether it is preemptible: borrowed quota is on loan.

use std::cmp::Reverse;

use comity_types::{ClusterId, RequestId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::borrowed_quota::{QuotaClaim, start_after_returns};
use crate::feasibility::reclaim_checks::preemption::{donors_of, is_yielding};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::ProposedReclaim;
use crate::scheduler::victims::{MAX_EXACT, Victim, VictimSet, choose_permitted, choose_victims};

/// Leases on borrowed quota that are searched together, beyond [`MAX_EXACT`].
const MAX_BORROWERS: usize = 256;

/// Leases to reclaim so that a request starts at a donor.
pub(crate) struct QuotaReturn<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) victims: Vec<Victim<'a>>,
}

/// The leases whose reclaim costs others least, beside `planned` reclaims; `None` if none help.
pub(crate) fn cheapest_return<'a>(
    snapshot: &Snapshot<'a>,
    id: RequestId,
    spec: &RequestSpec,
    planned: &[ProposedReclaim],
) -> Option<QuotaReturn<'a>> {
    let state = snapshot.state;
    let busy = donors_of(state, planned);
    let mut best: Option<(&'a ClusterId, VictimSet<'a>)> = None;
    for claim in QuotaClaim::all(snapshot, id, spec) {
        let search = ReturnSearch::new(snapshot, &claim, planned);
        let settles = |set: &[Victim<'a>]| claim.is_settled_by(leases(set));
        let Some(cheapest) = search.cheapest(None, &mut |set| settles(set)) else { continue };
        let free = donors(state, spec).filter_map(|donor| state.clusters.get_key_value(donor));
        for (donor, _) in free.filter(|(donor, _)| !busy.contains(donor) && !is_yielding(state, donor)) {
            let start = |set: &[Victim<'a>]| start_after_returns(state, donor, leases(set));
            let fits = |set: &[Victim<'a>], start| {
                let gone = set.iter().map(|victim| (victim.id, victim.lease));
                claim.place_at(donor, gone, start).is_some()
            };
            let fits_in_time = |set: &[Victim<'a>]| fits(set, start(set));
            // No set costs less than the one that the quota alone needs.
            let is_least = fits_in_time(&cheapest.victims);
            let found = if is_least {
                Some(cheapest.clone())
            } else {
                // The same start for all sets, so that no lease is reclaimed only because the request starts later then.
                let latest = start(&search.candidates);
                let found = search.cheapest(Some(donor), &mut |set| settles(set) && fits(set, latest));
                found.filter(|found| fits_in_time(&found.victims))
            };
            if let Some(found) = found
                && best.as_ref().is_none_or(|(_, best)| found.cost < best.cost)
            {
                best = Some((donor, found));
            }
            if is_least {
                break;
            }
        }
    }
    best.map(|(donor, set)| QuotaReturn { donor, victims: set.victims })
}

fn leases<'a>(set: &[Victim<'a>]) -> impl Iterator<Item = &'a Lease> {
    set.iter().map(|victim| victim.lease)
}

/// A search for leases that return what a request lacks.
struct ReturnSearch<'c, 'a, 's> {
    claim: &'c QuotaClaim<'a, 's>,
    /// The leases of borrowers, in order of preference.
    candidates: Vec<Victim<'a>>,
    /// Leases that may be reclaimed.
    most: usize,
}

impl<'c, 'a, 's> ReturnSearch<'c, 'a, 's> {
    fn new(snapshot: &Snapshot<'a>, claim: &'c QuotaClaim<'a, 's>, planned: &[ProposedReclaim]) -> Self {
        let borrowers = claim.borrowers().filter(|(id, _)| planned.iter().all(|reclaim| reclaim.lease != *id));
        let mut candidates: Vec<Victim<'a>> =
            borrowers.map(|(id, lease)| Victim::of(snapshot.state, id, lease)).collect();
        candidates.sort_by(Victim::cmp_preference);
        Self { claim, candidates, most: MAX_RECLAIMS_PER_COMMAND.saturating_sub(planned.len()) }
    }

    /// The cheapest leases that are enough. Beyond [`MAX_EXACT`] candidates it goes through them in order of preference,
    /// then with those at `donor` first, then with the largest first, and may miss a set.
    fn cheapest(
        &self,
        donor: Option<&ClusterId>,
        enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
    ) -> Option<VictimSet<'a>> {
        if self.candidates.len() <= MAX_EXACT {
            let may_take = |set: &[Victim<'a>]| set.len() <= self.most && self.claim.takes_only_borrowed(leases(set));
            return choose_permitted(self.candidates.clone(), &may_take, enough);
        }
        if !enough(&self.candidates) {
            return None;
        }
        let is_elsewhere = |victim: &Victim<'a>| donor.is_some_and(|donor| victim.lease.placement.donor != *donor);
        let size = |victim: &Victim<'a>| victim.lease.placement.milli();
        let there_first = || self.sorted_by(is_elsewhere);
        let largest_first = || self.sorted_by(|victim| (Reverse(size(victim)), is_elsewhere(victim)));
        self.choose(&self.candidates, MAX_BORROWERS, enough)
            .or_else(|| donor.and_then(|_| self.choose(&there_first(), MAX_BORROWERS, enough)))
            .or_else(|| self.choose(&largest_first(), self.most, enough))
    }

    /// The candidates by a key, and among equals in order of preference.
    fn sorted_by<K: Ord>(&self, key: impl Fn(&Victim<'a>) -> K) -> Vec<Victim<'a>> {
        let mut sorted = self.candidates.clone();
        sorted.sort_by_key(key);
        sorted
    }

    /// Of `order`, the first `most` that together take only what members borrow; of these, the cheapest that are enough.
    fn choose(
        &self,
        order: &[Victim<'a>],
        most: usize,
        enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
    ) -> Option<VictimSet<'a>> {
        let taken = self.claim.only_borrowed(leases(order), most);
        let taken = taken.into_iter().filter_map(|at| order.get(at).copied()).collect();
        choose_victims(taken, enough).filter(|set| set.victims.len() <= self.most)
    }
}
