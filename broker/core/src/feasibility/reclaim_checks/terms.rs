//! Detects leases that policy no longer allows: terms were withdrawn, or an agreement expired.

use comity_policy::{BorrowFacts, Decision, Denial, DenyCode, InUse};

use crate::model::lease::Lease;
use crate::model::time::Timestamp;
use crate::state::State;
use crate::state::notice::schedule_notice;

/// The denial code if policy, at `now`, would lend nothing at all to the tenant of `lease` from its donor. Limits on
/// amount or duration, and `accepting: false`, affect only new leases. A preemptible lease is withdrawn when no more than
/// its notice is left before a schedule ends its permission.
pub(crate) fn withdrawal_code(state: &State, lease: &Lease, now: Timestamp) -> Option<&'static str> {
    withdrawal(state, lease, now).map(|denial| denial.code.as_str())
}

/// As [`withdrawal_code`], with the documents behind it.
pub(crate) fn withdrawal(state: &State, lease: &Lease, now: Timestamp) -> Option<Denial> {
    let bundle = &state.policy.as_ref()?.bundle;
    // A lease that must run for its whole duration ends before the schedule does.
    let asked = state.requests.get(&lease.request).and_then(|request| request.spec.preemptible);
    let notice_ms = asked.map_or(0, |_| schedule_notice(bundle, &lease.placement.donor).0);
    let decision = bundle.may_borrow(&BorrowFacts {
        tenant: lease.tenant.as_str(),
        user: &lease.submitted_by,
        origin_cluster: lease.origin.as_str(),
        donor_cluster: lease.placement.donor.as_str(),
        class: lease.class.as_str(),
        gpus_milli: 1,
        beside_milli: 0,
        delivery: lease.delivery,
        duration_ms: 1,
        notice_ms: Some(notice_ms),
        now_ms: now.0,
        in_use: InUse::default(),
    });
    let Decision::Deny(denial) = decision else { return None };
    let ends_leases = match denial.code {
        DenyCode::UnknownTenant
        | DenyCode::UnknownOrigin
        | DenyCode::OriginNotAllowed
        | DenyCode::UnknownClass
        | DenyCode::ClassNotAllowed
        | DenyCode::UnknownDonor
        | DenyCode::ClassNotLent
        | DenyCode::BorrowerNotServed
        | DenyCode::NoAgreement
        | DenyCode::AgreementNotBegun
        | DenyCode::AgreementEnded
        | DenyCode::OutsideSchedule
        | DenyCode::ScheduleEndsTooSoon => true,
        DenyCode::InvalidAmount
        | DenyCode::SameCluster
        | DenyCode::RequestTooLarge
        | DenyCode::LeaseTooLong
        | DenyCode::DonorNotAccepting
        | DenyCode::NoDelivery
        // Rules look at amounts and durations too; they decide about new leases and renewals.
        | DenyCode::Rule
        | DenyCode::AgreementEndsTooSoon
        | DenyCode::AgreementExhausted
        | DenyCode::QuotaExhausted
        | DenyCode::GpuHoursExhausted
        | DenyCode::DonorExhausted => false,
    };
    ends_leases.then_some(denial)
}
