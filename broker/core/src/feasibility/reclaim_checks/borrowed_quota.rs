//! Borrowed quota that its owner needs back: a request waits that is within its nominal quotas, and other members of its
//! cohorts use what is missing.

use std::collections::BTreeMap;

use comity_policy::{LeaseUse, QuotaDebt};
use comity_types::{ClassName, ClusterId, LeaseId, LeaseState, RequestId};

use crate::feasibility::reclaim_checks::preemption::{beneficiary_of, departing_leases, is_yielding, reclaimed_for};
use crate::feasibility::release::{fits_when_gone, last_end, start_after_reclaims};
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::state::State;

/// A request within its nominal quotas, and what borrowers owe it.
pub(crate) struct QuotaClaim<'a, 's> {
    /// The state once all departing leases are gone that matter to the request, beside the claims of others.
    snapshot: Snapshot<'a>,
    spec: &'s RequestSpec,
    class: ClassName,
    debt: QuotaDebt<'a>,
}

impl<'a, 's> QuotaClaim<'a, 's> {
    /// The claims of a request, one for each class that it may get; none if it is above its nominal quotas, or if nothing
    /// is missing once departing leases are gone.
    pub(crate) fn all(snapshot: &Snapshot<'a>, by: RequestId, spec: &'s RequestSpec) -> Vec<Self> {
        if !snapshot.bundle.has_cohorts() {
            return Vec::new();
        }
        let after = after_departures(snapshot, by, spec, &[]);
        let claims = snapshot.classes_of(spec).into_iter().filter_map(|class| {
            let debt = after.quota_debt(PolicyQuery::of(spec, &class, spec.least_milli()))?;
            Some(Self { snapshot: after.clone(), spec, class, debt })
        });
        claims.collect()
    }

    /// The leases in force on quota that a member borrows.
    pub(crate) fn borrowers(&self) -> impl Iterator<Item = (LeaseId, &'a Lease)> {
        self.snapshot.state.live_leases().filter(|(_, lease)| self.may_reclaim(lease))
    }

    /// Whether a lease is in force on quota that a member borrows.
    fn may_reclaim(&self, lease: &Lease) -> bool {
        matches!(lease.state, LeaseState::Active | LeaseState::Suspect) && self.debt.is_owed_by(&lease.as_use())
    }

    /// Whether the quota suffices once these leases are gone.
    pub(crate) fn is_settled_by<'l>(&self, gone: impl Iterator<Item = &'l Lease>) -> bool {
        let gone: Vec<LeaseUse<'l>> = gone.map(Lease::as_use).collect();
        self.debt.left_milli(&gone) == 0
    }

    /// Whether each of these leases is needed for what its member borrows, and none only to make room.
    pub(crate) fn takes_only_borrowed<'l>(&self, gone: impl Iterator<Item = &'l Lease>) -> bool {
        let gone: Vec<LeaseUse<'l>> = gone.map(Lease::as_use).collect();
        self.debt.takes_only_borrowed(&gone)
    }

    /// Picks up to `most` of these leases, in their order, so that each one counts towards what its member borrows. Returns
    /// their positions.
    pub(crate) fn only_borrowed<'l>(&self, leases: impl Iterator<Item = &'l Lease>, most: usize) -> Vec<usize> {
        let leases: Vec<LeaseUse<'l>> = leases.map(Lease::as_use).collect();
        self.debt.only_borrowed(&leases, most)
    }

    /// The place of the request, which starts at `start`, at a donor once these leases are gone.
    pub(crate) fn place_at<'l>(
        &self,
        donor: &ClusterId,
        gone: impl Iterator<Item = (LeaseId, &'l Lease)>,
        start: Timestamp,
    ) -> Option<FeasiblePlacement> {
        let found = fits_when_gone(&self.snapshot, self.spec, donor, gone, start)?;
        (found.class == self.class).then_some(found)
    }

    /// Whether reclaiming these leases lets the request start at a donor, and `lease` is one that it needs.
    fn is_met_by(&self, donor: &ClusterId, set: &[(LeaseId, &Lease)], lease: LeaseId) -> bool {
        let start = start_after_returns(self.snapshot.state, donor, set.iter().map(|(_, lease)| *lease));
        let enough = |without: Option<LeaseId>| {
            let gone = || set.iter().filter(|(id, _)| Some(*id) != without).copied();
            self.is_settled_by(gone().map(|(_, lease)| lease)) && self.place_at(donor, gone(), start).is_some()
        };
        set.iter().all(|(_, lease)| self.may_reclaim(lease))
            && self.takes_only_borrowed(set.iter().map(|(_, lease)| *lease))
            && enough(None)
            && !enough(Some(lease))
    }
}

/// When a request starts at a donor for which these leases on borrowed quota are reclaimed now.
pub(crate) fn start_after_returns<'l>(
    state: &State,
    donor: &ClusterId,
    set: impl Iterator<Item = &'l Lease>,
) -> Timestamp {
    // The notice does not depend on the request.
    let reason = ReclaimReason::BorrowedQuota { by: RequestId(0), at: donor.clone() };
    start_after_reclaims(state, donor, set, &reason)
}

/// Whether request `by` starts at a donor once these leases on borrowed quota are gone, and would not if `lease` stayed.
pub(crate) fn returns_quota(
    state: &State,
    by: RequestId,
    donor: &ClusterId,
    set: &[(LeaseId, &Lease)],
    lease: LeaseId,
) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    !is_yielding(state, donor)
        && QuotaClaim::all(&snapshot, by, &request.spec).iter().any(|claim| claim.is_met_by(donor, set, lease))
}

/// Whether request `by` starts at a donor once departing leases are gone, and would not if lease `id` stayed.
pub(crate) fn is_quota_still_needed(state: &State, by: RequestId, donor: &ClusterId, id: LeaseId) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits() && request.room_at.is_some());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    let spec = &request.spec;
    let start = start_for(state, by, donor);
    let fits = |stays: &[LeaseId]| {
        let after = after_departures(&snapshot, by, spec, stays);
        fits_when_gone(&after, spec, donor, std::iter::empty(), start).is_some()
    };
    fits(&[]) && !fits(&[id]) && returns_borrowed(&snapshot, by, spec, id)
}

/// Whether lease `id`, reclaimed for request `by`, is needed for what its member borrows, and not only to make room.
fn returns_borrowed(snapshot: &Snapshot<'_>, by: RequestId, spec: &RequestSpec, id: LeaseId) -> bool {
    let reclaimed: Vec<(LeaseId, &Lease)> = reclaimed_for(snapshot.state, by).collect();
    let (ids, uses): (Vec<LeaseId>, Vec<LeaseUse<'_>>) =
        reclaimed.iter().map(|(id, lease)| (*id, lease.as_use())).unzip();
    let Some(lease) = snapshot.state.leases.get(&id).map(Lease::as_use) else { return false };
    let before = after_departures(snapshot, by, spec, &ids);
    snapshot.classes_of(spec).iter().any(|class| {
        let debt = before.quota_debt(PolicyQuery::of(spec, class, spec.least_milli()));
        debt.is_some_and(|debt| debt.needs(&lease, &uses))
    })
}

/// When a request starts at a donor for which leases on borrowed quota are being reclaimed.
fn start_for(state: &State, by: RequestId, donor: &ClusterId) -> Timestamp {
    last_end(state, departing_leases(state, donor).chain(reclaimed_for(state, by)))
}

/// Leases that depart and matter to a request: those of its donor, and those that count in its cohorts.
pub(crate) fn departing_for<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    donor: Option<&'a ClusterId>,
) -> Vec<(LeaseId, &'a Lease)> {
    let state = snapshot.state;
    if let Some(donor) = donor.filter(|_| !snapshot.bundle.is_in_cohort(spec.tenant.as_str())) {
        return departing_leases(state, donor).collect();
    }
    let peers = snapshot.bundle.cohort_peers(spec.tenant.as_str());
    let counts = |lease: &Lease| {
        donor.is_none_or(|donor| lease.placement.donor == *donor)
            || peers.tenants.contains(lease.tenant.as_str())
            || peers.institutions.contains(lease.institution.as_str())
    };
    state.departing().filter(|(_, lease)| counts(lease)).collect()
}

/// The snapshot once departing leases but `stays` are gone, and other requests have started for which borrowed quota is
/// reclaimed: two requests must not count on the same leases or the same room.
fn after_departures<'a>(snapshot: &Snapshot<'a>, by: RequestId, spec: &RequestSpec, stays: &[LeaseId]) -> Snapshot<'a> {
    let state = snapshot.state;
    let mut after = snapshot.clone();
    let mut others: BTreeMap<RequestId, &ClusterId> = BTreeMap::new();
    for (id, lease) in departing_for(snapshot, spec, None) {
        let reason = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason);
        if let (Some(ReclaimReason::BorrowedQuota { at, .. }), Some(other)) = (reason, beneficiary_of(state, lease)) {
            others.insert(other, at);
        }
        if !stays.contains(&id) {
            after.release_lease(id, lease);
        }
    }
    others.remove(&by);
    for (other, at) in others {
        let Some(Request { spec, .. }) = state.requests.get(&other) else { continue };
        let start = start_for(state, other, at);
        match fits_when_gone(&after, spec, at, std::iter::empty(), start) {
            Some(found) => after.take_from(start, spec, &found),
            None => after.count_claim(spec, at),
        }
    }
    after
}
