//! Detects leases that policy no longer allows: terms were withdrawn, or an agreement expired.

use comity_policy::{BorrowFacts, HeldLease, InUse, Withdrawal};
use comity_types::LeaseTreatment;

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::state::notice::schedule_notice;
use crate::state::{State, gang};

/// Why policy, at `now`, ends `lease` before its term: a document withdraws its permission, and lets it not finish. A
/// preemptible lease is withdrawn when no more than its notice is left before a schedule ends its permission.
pub(crate) fn withdrawal_of(state: &State, lease: &Lease, now: Timestamp) -> Option<Withdrawal> {
    let record = state.policy.as_ref()?;
    let request = state.requests.get(&lease.request);
    // A lease that must run for its whole duration ends before the schedule does.
    let asked = request.and_then(|request| request.spec.preemptible);
    let notice_ms = asked.map_or(0, |_| schedule_notice(&record.bundle, &lease.placement.donor).0);
    let gpus_milli = lease.placement.milli();
    let of_request = request.map_or(gpus_milli, |request| gang::held_milli(state, request));
    let held = HeldLease {
        facts: BorrowFacts {
            tenant: lease.tenant.as_str(),
            user: &lease.submitted_by,
            origin_cluster: lease.origin.as_str(),
            donor_cluster: lease.placement.donor.as_str(),
            class: lease.class.as_str(),
            gpus_milli,
            beside_milli: of_request.saturating_sub(gpus_milli),
            delivery: lease.delivery,
            duration_ms: lease.term.0,
            notice_ms: Some(notice_ms),
            now_ms: now.0,
            data: &lease.data,
            purpose: &lease.purpose,
            in_use: InUse::default(),
        },
        institution: lease.institution.as_str(),
        agreement: lease.agreement.as_deref(),
    };
    record.bundle.withdrawal(&held, &record.removed).filter(|found| found.treatment > LeaseTreatment::Finish)
}

/// The reason to reclaim a lease whose permission is withdrawn.
pub(crate) fn withdrawn(found: &Withdrawal) -> ReclaimReason {
    ReclaimReason::PolicyChanged { code: found.denial.code.as_str().to_owned(), treatment: found.treatment }
}
