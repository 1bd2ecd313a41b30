//! Leases that a bundle would end, or keep from being renewed.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, LeaseId, LeaseState, LeaseTreatment, Side, TenantId};

use super::{Effects, Planned};
use crate::feasibility::advance_reservations::check_kept::RESERVED;
use crate::feasibility::check_renewal::renewal_obstacle;
use crate::feasibility::reclaim_checks::kept::KeptNeed;
use crate::feasibility::reclaim_checks::terms::withdrawal_of;
use crate::model::lease::Lease;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::scheduler::reclaimer::reclaims_at;
use crate::state::notice::end_if_reclaimed;

/// Most leases whose renewal is examined, by id.
const MAX_RENEWALS_EXAMINED: usize = 5_000;

/// A lease that would end, or could no longer be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEffect {
    /// The lease.
    pub lease: LeaseId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its donor.
    pub donor: ClusterId,
    /// Thousandths of GPUs that it holds.
    pub gpu_milli: u64,
    /// What would become of it.
    pub treatment: LeaseTreatment,
    /// The code of the denial, as in "agreement-ended"; for other reasons to reclaim it, the reason's name.
    pub code: String,
    /// Why, in words; empty where the code says all.
    pub reason: String,
    /// The latest end: of the notice, or of its present term.
    pub until: Timestamp,
}

/// The leases that the change would end, by id, then those that it would keep from being renewed.
pub(super) fn lease_effects(before: &Planned<'_>, after: &Planned<'_>) -> Effects<LeaseEffect> {
    let mut ends: BTreeMap<LeaseId, LeaseEffect> = BTreeMap::new();
    let mut note = |effect: LeaseEffect| {
        ends.entry(effect.lease).or_insert(effect);
    };
    for donor in before.state.clusters.keys() {
        treated(before, after, donor).for_each(&mut note);
    }
    for reclaim in new_reclaims(before, after) {
        let Some(lease) = after.state.leases.get(&reclaim.lease) else { continue };
        let until = end_if_reclaimed(after.state, lease, &reclaim.reason);
        let treatment = if reclaim.reason.leaves_no_time() { LeaseTreatment::Stop } else { LeaseTreatment::Drain };
        let (code, reason) = match reclaim.reason {
            ReclaimReason::PolicyChanged { code, .. } if code == RESERVED => {
                let need = KeptNeed::of(after.state, &lease.placement.donor, after.state.log_time);
                (code, need.map_or_else(String::new, |need| need.text()))
            }
            ReclaimReason::PolicyChanged { code, .. } => {
                let withdrawal = withdrawal_of(after.state, lease, after.state.log_time);
                (code, withdrawal.map_or_else(String::new, |found| found.denial.message))
            }
            other => (other.as_str().to_owned(), String::new()),
        };
        note(effect_on(reclaim.lease, lease, (treatment, code, reason), until));
    }
    let in_force = || after.state.live_leases().filter(|(_, lease)| lease.state.is_in_force());
    let examined = in_force().take(MAX_RENEWALS_EXAMINED);
    let not_renewed = examined.filter(|(id, lease)| !ends.contains_key(id) && lease.reclaim.is_none());
    let not_renewed = not_renewed.filter_map(|(id, lease)| {
        let obstacle = renewal_obstacle(after.state, id, lease.term)?;
        let was = before.state.leases.get(&id)?;
        let is_new = renewal_obstacle(before.state, id, was.term).is_none();
        let why = (LeaseTreatment::Finish, obstacle.code, obstacle.reason);
        is_new.then(|| effect_on(id, lease, why, lease.latest_end(after.state.log_time)))
    });
    let not_renewed: Vec<LeaseEffect> = not_renewed.collect();
    let unexamined = in_force().count().saturating_sub(MAX_RENEWALS_EXAMINED);
    Effects { unexamined, ..ends.into_values().chain(not_renewed).collect() }
}

/// Leases of clusters and tenants that the change moves into a suspended institution, at one donor.
fn treated<'s>(
    before: &Planned<'s>,
    after: &Planned<'s>,
    donor: &'s ClusterId,
) -> impl Iterator<Item = LeaseEffect> + use<'s> {
    let (now, leases) = (after.state.log_time, &after.state.leases);
    before.state.leases_of(donor).filter_map(move |(id, lease)| {
        let held = leases.get(&id).filter(|held| held.placement.donor == *donor && held.state != lease.state)?;
        if !matches!(held.state, LeaseState::Reclaiming | LeaseState::Ending) {
            return None;
        }
        let code = ReclaimReason::Revoked { side: Side::Donor, by: None }.as_str().to_owned();
        let drains = held.state == LeaseState::Reclaiming;
        let treatment = if drains { LeaseTreatment::Drain } else { LeaseTreatment::Stop };
        Some(effect_on(id, held, (treatment, code, String::new()), held.latest_end(now)))
    })
}

/// Reclaims that donors or waiting requests would need under the new bundle only.
fn new_reclaims(before: &Planned<'_>, after: &Planned<'_>) -> Vec<ProposedReclaim> {
    let of_donors = |planned: &Planned<'_>| {
        let donors = before.state.clusters.keys();
        donors.flat_map(|donor| reclaims_at(planned.state, donor, after.state.log_time)).collect::<Vec<_>>()
    };
    let all = |planned: &Planned<'_>| {
        let mut all = of_donors(planned);
        all.extend(planned.plan.reclaims.iter().cloned());
        all
    };
    let anyway: BTreeSet<LeaseId> = all(before).into_iter().map(|reclaim| reclaim.lease).collect();
    let mut new = all(after);
    new.retain(|reclaim| !anyway.contains(&reclaim.lease));
    new
}

fn effect_on(
    id: LeaseId,
    lease: &Lease,
    (treatment, code, reason): (LeaseTreatment, String, String),
    until: Timestamp,
) -> LeaseEffect {
    LeaseEffect {
        lease: id,
        tenant: lease.tenant.clone(),
        donor: lease.placement.donor.clone(),
        gpu_milli: lease.placement.milli(),
        treatment,
        code,
        reason,
        until,
    }
}
