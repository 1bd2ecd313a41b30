//! Finds the leases on borrowed quota to reclaim for a request that is within its nominal quotas.
//!
//! Only what a member borrows is reclaimed, and only if the request then starts. Any lease of a borrower may be reclaimed,
//! whatever its priority and whether it is preemptible: borrowed quota is on loan.

use comity_types::{ClusterId, LeaseId, RequestId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::borrowed_quota::QuotaClaim;
use crate::feasibility::reclaim_checks::preemption::is_making_room;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::proposal::ProposedReclaim;
use crate::scheduler::victims::{Victim, VictimSet, choose_victims};

/// Leases on borrowed quota that are searched together.
const MAX_BORROWERS: usize = 256;

/// Leases to reclaim so that a request starts at a donor.
pub(crate) struct QuotaReturn<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) victims: Vec<Victim<'a>>,
}

/// The leases whose reclaim costs others least, without `planned` ones; `None` if none help.
pub(crate) fn cheapest_return<'a>(
    snapshot: &Snapshot<'a>,
    id: RequestId,
    spec: &RequestSpec,
    planned: &[ProposedReclaim],
) -> Option<QuotaReturn<'a>> {
    let state = snapshot.state;
    let is_planned = |id: LeaseId| planned.iter().any(|reclaim| reclaim.lease == id);
    let mut best: Option<(&'a ClusterId, VictimSet<'a>)> = None;
    for claim in QuotaClaim::all(snapshot, id, spec) {
        let borrowers = claim.borrowers().filter(|(id, _)| !is_planned(*id));
        let mut candidates: Vec<Victim<'a>> = borrowers.map(|(id, lease)| Victim::of(state, id, lease)).collect();
        candidates.sort_by(Victim::cmp_preference);
        candidates.truncate(MAX_BORROWERS);
        let settles = |set: &[Victim<'a>]| claim.is_settled_by(set.iter().map(|victim| victim.lease));
        let Some(cheapest) = choose_victims(candidates.clone(), &mut |set| settles(set)) else { continue };
        let free = donors(state, spec).filter_map(|donor| state.clusters.get_key_value(donor));
        for (donor, _) in free.filter(|(donor, _)| !is_making_room(state, donor)) {
            let fits = |set: &[Victim<'a>]| claim.place_at(donor, set.iter().map(|victim| victim.lease)).is_some();
            // No set costs less than the one that the quota alone needs.
            let found = if fits(&cheapest.victims) {
                Some(VictimSet::of(cheapest.victims.clone()))
            } else if fits(&candidates) {
                choose_victims(candidates.clone(), &mut |set| settles(set) && fits(set))
            } else {
                None
            };
            if let Some(found) = found
                && best.as_ref().is_none_or(|(_, best)| found.cost < best.cost)
            {
                best = Some((donor, found));
            }
        }
    }
    best.map(|(donor, set)| QuotaReturn { donor, victims: set.victims })
}
