//! What a quota of a cohort may still use, and why it may not use more.

use super::denials::{CheckResult, deny};
use super::{BorrowFacts, DenyCode, milli_of};
use crate::amounts::show_gpus;
use crate::bundle::Bundle;
use crate::documents::{CohortMembership, DocRef, Document, Quota};

/// A quota of a cohort beside the use of all its members, in milli-GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct CohortStanding<'b> {
    pub(super) cohort: &'b CohortMembership,
    /// Its nominal quota.
    pub(super) nominal_milli: u64,
    /// What it uses.
    pub(super) used_milli: u64,
    /// The most that it may use if the other members use nothing.
    most_milli: u64,
    /// The part of its nominal quota that it does not lend.
    own_milli: u64,
    /// The part of the shared quota that nobody uses.
    idle_milli: u64,
}

impl<'b> CohortStanding<'b> {
    /// `None` for a quota without a cohort.
    pub(super) fn of(bundle: &'b Bundle, facts: &BorrowFacts<'_>, quota: &'b Document<Quota>) -> Option<Self> {
        let spec = &quota.spec;
        let (cohort, nominal_milli) = (spec.cohort.as_ref()?, spec.max_concurrent_gpus_milli?);
        let shared_milli = bundle.cohorts.shared_milli(&cohort.name);
        let used_of_shared = facts.in_use.cohorts.map_or(0, |cohorts| cohorts.shared_milli(&cohort.name));
        Some(Self {
            cohort,
            nominal_milli,
            used_milli: milli_of(facts.in_use.of_quota(&spec.subject, false), |class| spec.covers_class(class)),
            most_milli: nominal_milli.saturating_add(bundle.cohorts.borrows_milli(spec)),
            own_milli: nominal_milli.saturating_sub(spec.lends_milli()),
            idle_milli: shared_milli.saturating_sub(used_of_shared),
        })
    }

    /// What its own part and the idle part of the shared quota have together.
    const fn idle_and_own_milli(&self) -> u64 {
        self.own_milli.saturating_sub(self.used_milli).saturating_add(self.idle_milli)
    }

    /// What it may use now beside what it uses.
    pub(super) fn available_milli(&self) -> u64 {
        self.most_milli.saturating_sub(self.used_milli).min(self.idle_and_own_milli())
    }

    /// Whether it borrows once it uses so much more.
    pub(super) const fn borrows(&self, requested_milli: u64) -> bool {
        self.used_milli.saturating_add(requested_milli) > self.nominal_milli
    }

    /// The part of the shared quota that nobody uses once it uses so much more.
    pub(super) const fn idle_after_milli(&self, requested_milli: u64) -> u64 {
        let own_left = self.own_milli.saturating_sub(self.used_milli);
        self.idle_milli.saturating_sub(requested_milli.saturating_sub(own_left))
    }

    /// What it uses above its nominal quota.
    pub(super) const fn borrowed_milli(&self) -> u64 {
        self.used_milli.saturating_sub(self.nominal_milli)
    }

    /// What is missing of its nominal quota because other members use it.
    pub(super) const fn lent_milli(&self) -> u64 {
        self.nominal_milli.saturating_sub(self.used_milli).saturating_sub(self.idle_and_own_milli())
    }

    /// Denies a lease that does not fit. Returns whether it borrows.
    pub(super) fn check(&self, facts: &BorrowFacts<'_>, quota: &Document<Quota>) -> CheckResult<bool> {
        let (requested, used) = (facts.gpus_milli, self.used_milli);
        let becomes = used.saturating_add(requested);
        if requested <= self.available_milli() {
            return Ok(self.borrows(requested));
        }
        let (nominal, name) = (quota.cite("maxConcurrentGpus"), &self.cohort.name);
        let most_borrowed = show_gpus(self.most_milli - self.nominal_milli);
        let allows = format!(
            "{} allows {} GPUs at a time, and at most {most_borrowed} more of cohort `{name}`",
            quota.spec.shown(&quota.name, false),
            show_gpus(self.nominal_milli)
        );
        let (used_text, needs) = (show_gpus(used), show_gpus(requested));
        if requested > self.most_milli {
            let unblock =
                format!("ask for at most {} GPUs, or raise the limit in {nominal}", show_gpus(self.most_milli));
            let message = format!("{allows}, and the request needs {needs}");
            return deny(DenyCode::RequestTooLarge, message, unblock, self.borrowing_by(quota));
        }
        if becomes > self.most_milli {
            let excess = show_gpus(becomes - self.most_milli);
            let message = format!("{allows}; {used_text} are in use and the request needs {needs} more");
            let unblock = format!("wait until {excess} of them are free, or raise the limit in {nominal}");
            return deny(DenyCode::QuotaExhausted, message, unblock, self.borrowing_by(quota));
        }
        if becomes <= self.nominal_milli {
            let message = format!(
                "{} allows {} GPUs at a time; {used_text} are in use, others of cohort `{name}` borrow {}, and the request \
                 needs {needs} more",
                quota.spec.shown(&quota.name, false),
                show_gpus(self.nominal_milli),
                show_gpus(self.lent_milli())
            );
            let unblock = format!(
                "wait: leases on borrowed quota are reclaimed for it, if it fits then; or lend less by `lendingLimit` of \
                 {nominal}"
            );
            return deny(DenyCode::QuotaLent, message, unblock, vec![quota.cite("cohort")]);
        }
        let message = format!(
            "{allows}; {used_text} are in use, the request needs {needs} more, and {} can be had now",
            show_gpus(self.available_milli())
        );
        let unblock = format!("wait until members of the cohort use less, or raise the limit in {nominal}");
        deny(DenyCode::CohortExhausted, message, unblock, vec![quota.cite("cohort")])
    }

    /// The line that sets how much it borrows.
    fn borrowing_by(&self, quota: &Document<Quota>) -> Vec<DocRef> {
        let field = if self.cohort.borrowing_limit_milli.is_some() { "borrowingLimit" } else { "cohort" };
        vec![quota.cite(field)]
    }
}
