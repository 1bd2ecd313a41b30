//! Checks of what is in force during or outside a schedule.

use super::denials::{CheckResult, deny};
use super::{BorrowFacts, DenyCode};
use crate::amounts::{show_duration, show_time};
use crate::bundle::Bundle;
use crate::calendar::Phase;
use crate::documents::{DocRef, When};

impl Bundle {
    /// The phase of `during` or `outside` at a time in milliseconds since 1970; `None` if the bundle lacks the schedule,
    /// which a valid one does not.
    pub(crate) fn phase_of(&self, when: &When, at_ms: u64) -> Option<Phase> {
        let schedule = &self.schedules.get(when.schedule())?.spec;
        let phase = schedule.phase_at(self.source.zones.get(&schedule.time_zone)?, at_ms);
        Some(match when {
            When::During(_) => phase,
            When::Outside(_) => phase.inverted(),
        })
    }

    /// The next time after `after_ms` at which time alone changes a decision: a schedule opens or closes, a reservation
    /// releases what is unused, an agreement begins or ends, or the period of a quota ends. In milliseconds since 1970.
    #[must_use]
    pub fn next_change_ms(&self, after_ms: u64) -> Option<u64> {
        let schedules = self.schedules.values().filter_map(|schedule| {
            let rules = self.source.zones.get(&schedule.spec.time_zone)?;
            schedule.spec.phase_at(rules, after_ms).until_ms
        });
        let agreements = self.agreements.values().flat_map(|agreement| {
            let ended_ms = agreement.spec.until_ms.map(|until_ms| until_ms.saturating_add(1));
            [agreement.spec.from_ms, ended_ms].into_iter().flatten()
        });
        schedules
            .chain(agreements)
            .chain(self.next_release_ms(after_ms))
            .chain(self.ends_of_periods(after_ms))
            .filter(|at_ms| *at_ms > after_ms)
            .min()
    }
}

/// Denies a lease outside the time in which `subject` is in force, and one that would outlive it. A lease that may be
/// reclaimed has to have its notice before that.
pub(super) fn check_when(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    when: &When,
    subject: impl FnOnce() -> String,
    cite: impl FnOnce(&str) -> DocRef,
) -> CheckResult<()> {
    let schedule = when.schedule();
    let Some(phase) = bundle.phase_of(when, facts.now_ms) else {
        let message = format!("there is no schedule `{schedule}`");
        return deny(DenyCode::OutsideSchedule, message, "a maintainer can add it", vec![cite(when.field())]);
    };
    let field = when.field();
    if !phase.is_open {
        let by = cite(field);
        let message = format!("{} is in force {field} `{schedule}` only", subject());
        let unblock = match phase.until_ms {
            Some(until_ms) => {
                let wait = show_duration(until_ms.saturating_sub(facts.now_ms));
                format!("wait {wait}, until {}, or change {by}", show_time(until_ms))
            }
            None => format!("it is not within five weeks; change {by}"),
        };
        return deny(DenyCode::OutsideSchedule, message, unblock, vec![by]);
    }
    let Some(until_ms) = phase.until_ms else { return Ok(()) };
    let left_ms = until_ms.saturating_sub(facts.now_ms);
    let by = || cite(field);
    match facts.notice_ms {
        // With its last moment as notice, it would be reclaimed at once.
        Some(notice_ms) if notice_ms >= left_ms => {
            let message = format!(
                "{} is in force until {}, which leaves no time before the notice of {}",
                subject(),
                show_time(until_ms),
                show_duration(notice_ms)
            );
            let by = by();
            let unblock = format!("wait until it is in force again, or change {by}");
            deny(DenyCode::ScheduleEndsTooSoon, message, unblock, vec![by])
        }
        None if facts.duration_ms > left_ms => {
            let left = show_duration(left_ms);
            let message =
                format!("{} is in force until {}, before the lease would end", subject(), show_time(until_ms));
            let by = by();
            let unblock = format!("ask for at most {left}, or for a preemptible lease, or change {by}");
            deny(DenyCode::ScheduleEndsTooSoon, message, unblock, vec![by])
        }
        _ => Ok(()),
    }
}
