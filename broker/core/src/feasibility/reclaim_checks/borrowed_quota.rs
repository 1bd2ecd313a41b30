//! Borrowed quota that its owner needs back: a request waits that is within its nominal quotas, and other members of its
//! cohorts use what is missing.

use std::collections::BTreeSet;

use comity_policy::{LeaseUse, QuotaDebt};
use comity_types::{ClassName, ClusterId, LeaseId, LeaseState, RequestId};

use crate::feasibility::reclaim_checks::preemption::{beneficiary_of, departing_leases, departs, is_making_room};
use crate::feasibility::release::fits_when_gone;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
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
        let after = after_departures(snapshot, by, spec, None);
        let claims = classes_of(snapshot, spec).into_iter().filter_map(|class| {
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

    /// The place of the request at a donor once these leases are gone.
    pub(crate) fn place_at<'l>(
        &self,
        donor: &ClusterId,
        gone: impl Iterator<Item = &'l Lease>,
    ) -> Option<FeasiblePlacement> {
        let found = fits_when_gone(&self.snapshot, self.spec, donor, gone)?;
        (found.class == self.class).then_some(found)
    }

    /// Whether reclaiming exactly these leases lets the request start at a donor.
    fn is_met_by(&self, donor: &ClusterId, set: &[(LeaseId, &Lease)]) -> bool {
        let enough = |without: Option<LeaseId>| {
            let gone = || set.iter().filter(|(id, _)| Some(*id) != without).map(|(_, lease)| *lease);
            self.is_settled_by(gone()) && self.place_at(donor, gone()).is_some()
        };
        set.iter().all(|(_, lease)| self.may_reclaim(lease))
            && enough(None)
            && set.iter().all(|(id, _)| !enough(Some(*id)))
    }
}

/// Whether request `by` starts at a donor once exactly these leases on borrowed quota are gone.
pub(crate) fn returns_quota(state: &State, by: RequestId, donor: &ClusterId, set: &[(LeaseId, &Lease)]) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    !is_making_room(state, donor)
        && QuotaClaim::all(&snapshot, by, &request.spec).iter().any(|claim| claim.is_met_by(donor, set))
}

/// Whether request `by` starts at a donor once departing leases are gone, and would not if lease `id` stayed.
pub(crate) fn is_quota_still_needed(state: &State, by: RequestId, donor: &ClusterId, id: LeaseId) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits() && request.room_at.is_some());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    let fits = |stays: Option<LeaseId>| {
        let after = after_departures(&snapshot, by, &request.spec, stays);
        fits_when_gone(&after, &request.spec, donor, std::iter::empty()).is_some()
    };
    fits(None) && !fits(Some(id))
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
    state.live_leases().filter(|(_, lease)| departs(lease) && counts(lease)).collect()
}

/// The snapshot once departing leases but `stays` are gone. What other waiting requests claim of borrowed quota counts as
/// in use, so that two requests do not count on the same leases.
fn after_departures<'a>(
    snapshot: &Snapshot<'a>,
    by: RequestId,
    spec: &RequestSpec,
    stays: Option<LeaseId>,
) -> Snapshot<'a> {
    let mut after = snapshot.clone();
    let mut counted = BTreeSet::new();
    for (id, lease) in departing_for(snapshot, spec, None) {
        let reason = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason);
        if let (Some(ReclaimReason::BorrowedQuota { at, .. }), Some(other)) =
            (reason, beneficiary_of(snapshot.state, lease).filter(|other| *other != by))
            && counted.insert(other)
            && let Some(request) = snapshot.state.requests.get(&other)
        {
            after.count_claim(&request.spec, &lease.class, at);
        }
        if stays != Some(id) {
            after.release_lease(lease);
        }
    }
    after
}

/// The classes that a request may get.
pub(crate) fn classes_of(snapshot: &Snapshot<'_>, spec: &RequestSpec) -> Vec<ClassName> {
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => vec![class.clone()],
        DeviceChoice::Selector(_) => {
            let tenant = snapshot.bundle.tenants.get(spec.tenant.as_str());
            let classes = tenant.into_iter().flat_map(|tenant| &tenant.spec.classes);
            classes.filter_map(|class| ClassName::parse(class, "class").ok()).collect()
        }
    }
}
