//! Converts explanations and quotes of requests.

use comity_core::Timestamp;
use comity_core::demand::RequestSpec;
use comity_core::explain::{Alternative, Explanation, QueuePosition, ReclaimedLease, Reclaims};
use comity_core::feasibility::DonorVerdict;
use comity_policy::{QuotaSubject, QuotaUse};
use comity_proto::v1;
use comity_types::{ClusterId, LeaseId, TenantId};

/// Converts to the API message.
#[must_use]
pub fn quota_to_proto(quota: &QuotaUse) -> v1::QuotaUse {
    let (tenant, institution) = match &quota.subject {
        QuotaSubject::Tenant(tenant) => (tenant.clone(), String::new()),
        QuotaSubject::Institution(institution) => (String::new(), institution.clone()),
    };
    v1::QuotaUse {
        by: quota.by.to_string(),
        tenant,
        institution,
        per_user: quota.per_user,
        classes: quota.classes.iter().cloned().collect(),
        per: quota.period.map_or_else(String::new, |(per, _)| per.to_string()),
        period_start_ms: quota.period.map_or(0, |(_, span)| span.start_ms),
        period_end_ms: quota.period.map_or(0, |(_, span)| span.end_ms),
        limit_milli: quota.limit_milli,
        used_milli: quota.used_milli,
        needs_milli: quota.needs_milli,
        left_milli: quota.left_milli(),
        available_milli: quota.available_milli(),
        cohort: quota.cohort.as_ref().map_or_else(String::new, |share| share.cohort.clone()),
        borrowed_milli: quota.cohort.as_ref().map_or(0, |share| share.borrowed_milli),
        lent_milli: quota.cohort.as_ref().map_or(0, |share| share.lent_milli),
    }
}

/// Converts to the API message.
#[must_use]
pub fn alternative_to_proto(alternative: &Alternative) -> v1::Alternative {
    v1::Alternative {
        template: alternative.template.to_string(),
        title: alternative.title.clone(),
        earliest_ms: alternative.earliest.0,
        donor: names(&alternative.donors),
    }
}

/// What to submit instead, for the remedy of a refusal at `now`; `None` without alternatives. Times are in backticks:
/// clients rewrite numbers as those of the refused field.
#[must_use]
pub fn alternatives_text(alternatives: &[Alternative], now: Timestamp) -> Option<String> {
    let each = alternatives.iter().map(|it| {
        let start = if it.earliest <= now { "now".to_owned() } else { format!("at `{}`", it.earliest.to_minute()) };
        format!("{} could start {start}", it.template)
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("or submit from a request template: {}", each.join(", ")))
}

/// Each donor's verdict.
#[must_use]
pub fn verdicts(explanation: &Explanation) -> Vec<v1::DonorVerdict> {
    explanation.donors.iter().map(verdict).collect()
}

/// Converts to the API message.
#[must_use]
pub fn position_to_proto(position: &QueuePosition, spec: &RequestSpec) -> v1::QueuePosition {
    let reserved = position.reserved.as_ref();
    let (earliest_ms, earliest_donor) = earliest(position.earliest.as_ref());
    v1::QueuePosition {
        place: u32::try_from(position.place).unwrap_or(u32::MAX),
        waiting: u32::try_from(position.waiting).unwrap_or(u32::MAX),
        share_ppm: position.share_ppm,
        entitled_ppm: position.entitled_ppm,
        reserved_for: reserved.map_or_else(String::new, |reserved| reserved.request.to_string()),
        reserved_from_ms: reserved.map_or(0, |reserved| reserved.at.0),
        reserved_donor: reserved.map_or_else(String::new, |reserved| names(&reserved.donors)),
        earliest_ms,
        earliest_donor,
        too_late: too_late(earliest_ms, spec.start_by),
    }
}

/// Converts to the API message. `seen` returns the tenant of a lease that the caller may see; other leases stay
/// anonymous.
#[must_use]
pub fn reclaims_to_proto<'s>(reclaims: &Reclaims, seen: impl Fn(LeaseId) -> Option<&'s TenantId>) -> v1::Reclaims {
    let told = |told: &ReclaimedLease| {
        let tenant = seen(told.lease);
        v1::ReclaimedLease {
            lease: tenant.map_or_else(String::new, |_| told.lease.to_string()),
            tenant: tenant.map_or_else(String::new, ToString::to_string),
            priority: told.priority.as_ref().map_or_else(String::new, ToString::to_string),
            gpus_milli: told.gpus_milli,
            notice_ms: told.notice.0,
            until_ms: told.until.map_or(0, |until| until.0),
        }
    };
    v1::Reclaims {
        donor: reclaims.donor.to_string(),
        given: reclaims.given,
        move_aside: reclaims.move_aside,
        return_quota: reclaims.return_quota,
        gpus_milli: reclaims.gpus_milli(),
        until_ms: reclaims.until().map_or(0, |until| until.0),
        leases: reclaims.leases.iter().map(told).collect(),
    }
}

/// Whether a request fails before its earliest start.
#[must_use]
pub fn too_late(earliest_ms: u64, start_by: Option<Timestamp>) -> bool {
    start_by.is_some_and(|closes| earliest_ms >= closes.0)
}

/// Earliest start of a request and its donors, as API fields.
#[must_use]
pub fn earliest(earliest: Option<&(Timestamp, Vec<ClusterId>)>) -> (u64, String) {
    earliest.map_or_else(Default::default, |(at, donors)| (at.0, names(donors)))
}

fn names(donors: &[ClusterId]) -> String {
    donors.iter().map(ClusterId::as_str).collect::<Vec<_>>().join(", ")
}

fn verdict(verdict: &DonorVerdict) -> v1::DonorVerdict {
    let (donor, warnings) = (verdict.donor.to_string(), verdict.warnings.clone());
    match &verdict.obstacle {
        None => v1::DonorVerdict { donor, fits: true, warnings, ..v1::DonorVerdict::default() },
        Some(obstacle) => v1::DonorVerdict {
            donor,
            fits: false,
            code: obstacle.code.clone(),
            reason: obstacle.reason.clone(),
            unblock: obstacle.unblock.clone(),
            by: obstacle.by.clone(),
            warnings,
        },
    }
}

#[cfg(test)]
mod tests {
    use comity_core::Millis;
    use comity_types::PriorityName;

    use super::*;

    #[test]
    fn a_start_at_or_after_the_end_of_the_window_is_too_late() {
        let closes = Some(Timestamp(2_000));
        assert_eq!([1_999, 2_000, 2_001].map(|at| too_late(at, closes)), [false, true, true]);
        assert!(!too_late(u64::MAX, None) && !too_late(0, None));
    }

    #[test]
    fn which_lease_is_reclaimed_is_told_to_those_who_may_see_it() {
        let lease = |id| ReclaimedLease {
            lease: LeaseId(id),
            priority: Some(PriorityName::parse("low", "priority").expect("it is good")),
            gpus_milli: 2_000,
            notice: Millis(60_000),
            until: Some(Timestamp(90_000 + id)),
        };
        let reclaims = Reclaims {
            donor: ClusterId::parse("north", "donor").expect("it is good"),
            given: false,
            move_aside: false,
            return_quota: false,
            leases: vec![lease(7), lease(8)],
        };
        let team = TenantId::parse("team", "tenant").expect("it is good");
        let told = reclaims_to_proto(&reclaims, |id| (id == LeaseId(8)).then_some(&team));
        assert_eq!((told.gpus_milli, told.until_ms, told.donor.as_str()), (4_000, 90_008, "north"));
        let which: Vec<_> = told.leases.iter().map(|it| (it.lease.as_str(), it.tenant.as_str())).collect();
        assert_eq!(which, [("", ""), ("lease-8", "team")]);
        assert!(told.leases.iter().all(|it| it.priority == "low" && it.notice_ms == 60_000));
    }
}
