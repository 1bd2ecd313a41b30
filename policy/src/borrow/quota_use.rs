//! What is left of the quotas that a lease counts against.

use std::collections::BTreeSet;

use comity_types::Delivery;

use super::cohort_standing::CohortStanding;
use super::gpu_time::Limit;
use super::{BorrowFacts, InUse, milli_of};
use crate::amounts::GPU_HOUR;
use crate::bundle::Bundle;
use crate::calendar::{CalendarPeriod, TimeSpan};
use crate::documents::{DocRef, Document, Quota, QuotaSubject};

/// Limits that are shown with a request.
const MAX_SHOWN: usize = 64;
/// Periods of one limit that are shown: the present one, and the next ones that the lease touches.
const MAX_PERIODS_SHOWN: usize = 3;

/// A limit of a quota, and what counts against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Document and line of the limit.
    pub by: DocRef,
    /// Whom the quota limits.
    pub subject: QuotaSubject,
    /// Whether the limit holds for each user; `used_milli` is then of the user who asks.
    pub per_user: bool,
    /// The classes that count; empty for all.
    pub classes: BTreeSet<String>,
    /// The period of a limit on GPU-hours; `None` for a limit on GPUs at a time.
    pub period: Option<(CalendarPeriod, TimeSpan)>,
    /// The limit, in thousandths of GPUs or GPU-hours.
    pub limit_milli: u64,
    /// What is in use, or used and booked; rounded up.
    pub used_milli: u64,
    /// What the lease needs; rounded up.
    pub needs_milli: u64,
    /// The quota's part in its cohort; `None` without one.
    pub cohort: Option<CohortShare>,
}

/// What a quota borrows of its cohort, lends to it, and may still use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CohortShare {
    /// The cohort.
    pub cohort: String,
    /// What is in use above the quota, in thousandths of GPUs.
    pub borrowed_milli: u64,
    /// What is missing of the quota because other members use it.
    pub lent_milli: u64,
    /// What may be used now beside what is in use, with what may be borrowed.
    pub available_milli: u64,
}

impl QuotaUse {
    /// What may be used now beside what is in use.
    #[must_use]
    pub const fn available_milli(&self) -> u64 {
        match &self.cohort {
            Some(cohort) => cohort.available_milli,
            None => self.limit_milli.saturating_sub(self.used_milli),
        }
    }

    /// What is left after the lease.
    #[must_use]
    pub const fn left_milli(&self) -> u64 {
        self.available_milli().saturating_sub(self.needs_milli)
    }
}

/// GPU-time in thousandths of GPU-hours, rounded up.
fn hours_milli(time: u128) -> u64 {
    u64::try_from(time.saturating_mul(1_000).div_ceil(GPU_HOUR)).unwrap_or(u64::MAX)
}

impl Bundle {
    /// The limits of quotas in force that count a lease, by the names of the quotas.
    #[must_use]
    pub fn quota_uses(&self, facts: &BorrowFacts<'_>) -> Vec<QuotaUse> {
        let mut uses = self.uses_of(facts, |quota| quota.spec.covers_class(facts.class));
        uses.truncate(MAX_SHOWN);
        uses
    }

    /// The limits of quotas in force that count a tenant, as they stand for a user without a further lease.
    #[must_use]
    pub fn tenant_quotas(&self, tenant: &str, user: &str, now_ms: u64, in_use: InUse<'_>) -> Vec<QuotaUse> {
        let facts = BorrowFacts {
            tenant,
            user,
            now_ms,
            in_use,
            origin_cluster: "",
            donor_cluster: "",
            class: "",
            gpus_milli: 0,
            beside_milli: 0,
            delivery: Delivery::default(),
            duration_ms: 0,
            notice_ms: None,
            data: &[],
            purpose: "",
        };
        self.uses_of(&facts, |_| true)
    }

    fn uses_of(&self, facts: &BorrowFacts<'_>, counts: impl Fn(&Document<Quota>) -> bool) -> Vec<QuotaUse> {
        let is_in_force = |quota: &&Document<Quota>| {
            let phase = quota.spec.when.as_ref().and_then(|when| self.phase_of(when, facts.now_ms));
            phase.is_none_or(|phase| phase.is_open)
        };
        let counting = self.quotas_of(facts.tenant).filter(|quota| counts(quota));
        let uses = counting.filter(is_in_force).flat_map(|quota| {
            let mut uses: Vec<QuotaUse> = Vec::new();
            for per_user in [false, true].into_iter().filter(|per_user| !(*per_user && facts.user.is_empty())) {
                uses.extend(self.concurrent(quota, facts, per_user));
                uses.extend(Limit::of(self, quota, per_user).into_iter().flat_map(|limit| hours(limit, facts)));
            }
            uses
        });
        uses.collect()
    }

    /// The limit on GPUs at a time.
    fn concurrent(&self, quota: &Document<Quota>, facts: &BorrowFacts<'_>, per_user: bool) -> Option<QuotaUse> {
        let (limit_milli, field) = quota.spec.max_concurrent_of(per_user)?;
        let in_use = facts.in_use.of_quota(&quota.spec.subject, per_user);
        let standing = if per_user { None } else { CohortStanding::of(self, facts, quota) };
        Some(QuotaUse {
            by: quota.cite(field),
            subject: quota.spec.subject.clone(),
            per_user,
            classes: quota.spec.classes.clone(),
            period: None,
            limit_milli,
            used_milli: milli_of(in_use, |class| quota.spec.covers_class(class)),
            needs_milli: facts.gpus_milli,
            cohort: standing.map(|standing| CohortShare {
                cohort: standing.cohort.name.clone(),
                borrowed_milli: standing.borrowed_milli(),
                lent_milli: standing.lent_milli(),
                available_milli: standing.available_milli(),
            }),
        })
    }
}

/// The present period, and the next ones that the lease touches.
fn hours(limit: Limit<'_>, facts: &BorrowFacts<'_>) -> Vec<QuotaUse> {
    let booking = facts.booking();
    let booked = facts.in_use.gpu_time.map(|known| known.booked);
    // A request for no time has a period, too.
    let until_ms = booking.until_ms.max(booking.from_ms.saturating_add(1));
    let spans = limit.spans(booking.from_ms, until_ms).take(MAX_PERIODS_SHOWN);
    let uses = spans.map(|span| QuotaUse {
        by: limit.cite(),
        subject: limit.quota.spec.subject.clone(),
        per_user: limit.per_user,
        classes: limit.quota.spec.classes.clone(),
        period: Some((limit.hours.per, span)),
        limit_milli: limit.hours.limit_milli,
        used_milli: hours_milli(booked.map_or(0, |table| table.get(limit.key(facts.user), span.start_ms))),
        needs_milli: hours_milli(booking.time_in(span)),
        cohort: None,
    });
    uses.collect()
}
