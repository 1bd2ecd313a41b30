//! GPU-time of leases in calendar periods, and the limits on it (`gpuHours` of quotas).
//!
//! A lease books its GPU-time ahead, to the end of its term: what it has used and may still use counts against the limit
//! of each period in which it falls. So no later use exceeds a limit that held when a lease was granted or renewed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::DenyCode;
use super::denials::{CheckResult, deny};
use super::usage::update;
use crate::amounts::{GPU_HOUR, show_duration, show_gpu_hours, show_time};
use crate::bundle::Bundle;
use crate::calendar::{CalendarPeriod, TimeSpan, ZoneRules};
use crate::documents::{DocRef, Document, GpuHours, Quota};

/// Periods of one booking that count: more than ten years of days.
const MAX_PERIODS: usize = 3_700;
/// Shorter terms are not proposed.
const SHORTEST_PROPOSED_MS: u64 = 60_000;
const USUAL_DAY_MS: u64 = 86_400_000;

/// The GPU-time of one lease: `gpus_milli` for at most `most_ms` between `from_ms` and `until_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking<'b> {
    /// The tenant that borrows.
    pub tenant: &'b str,
    /// Who submitted the request; empty if unknown.
    pub user: &'b str,
    /// The class of the GPUs.
    pub class: &'b str,
    /// GPUs, in milli-GPU.
    pub gpus_milli: u64,
    /// The earliest begin, in milliseconds since 1970.
    pub from_ms: u64,
    /// The latest end.
    pub until_ms: u64,
    /// The longest time between the two, in milliseconds.
    pub most_ms: u64,
}

impl Booking<'_> {
    /// The most GPU-time that falls into a period, in thousandths of a GPU × milliseconds.
    pub(super) fn time_in(&self, span: TimeSpan) -> u128 {
        let ms = span.overlap_ms(self.from_ms, self.until_ms).min(self.most_ms);
        u128::from(self.gpus_milli) * u128::from(ms)
    }

    /// The most GPU-time of all periods together.
    fn whole(&self) -> u128 {
        let ms = self.until_ms.saturating_sub(self.from_ms).min(self.most_ms);
        u128::from(self.gpus_milli) * u128::from(ms)
    }
}

/// What a limit on GPU-time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitKey<'k> {
    /// The Quota document.
    pub quota: &'k str,
    /// The user, for a limit on each; empty for the limit on all together.
    pub user: &'k str,
}

/// GPU-time in thousandths of a GPU × milliseconds, by quota, user and begin of the period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuTimeTable {
    by_quota: BTreeMap<String, BTreeMap<String, BTreeMap<u64, u128>>>,
}

impl GpuTimeTable {
    /// Whether it counts nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_quota.is_empty()
    }

    /// The GPU-time of a limit in the period that begins at `start_ms`.
    #[must_use]
    pub fn get(&self, key: LimitKey<'_>, start_ms: u64) -> u128 {
        let periods = self.by_quota.get(key.quota).and_then(|users| users.get(key.user));
        periods.and_then(|periods| periods.get(&start_ms)).copied().unwrap_or(0)
    }

    /// All entries: limit, begin of the period, GPU-time.
    pub fn iter(&self) -> impl Iterator<Item = (LimitKey<'_>, u64, u128)> {
        let users = self.by_quota.iter().flat_map(|(quota, users)| users.iter().map(move |it| (quota, it)));
        users.flat_map(|(quota, (user, periods))| {
            periods.iter().map(move |(start, time)| (LimitKey { quota, user }, *start, *time))
        })
    }

    /// Adds GPU-time. Clones the names only for a new entry.
    pub fn add(&mut self, key: LimitKey<'_>, start_ms: u64, time: u128) {
        if time > 0 {
            let add = |periods: &mut BTreeMap<u64, u128>| {
                let sum = periods.entry(start_ms).or_default();
                *sum = sum.saturating_add(time);
            };
            update(&mut self.by_quota, key.quota, |users| update(users, key.user, add));
        }
    }

    /// Subtracts GPU-time that was added before. Empty entries disappear, so that equal tables compare equal.
    pub fn remove(&mut self, key: LimitKey<'_>, start_ms: u64, time: u128) {
        let Some(users) = self.by_quota.get_mut(key.quota) else { return };
        let Some(periods) = users.get_mut(key.user) else { return };
        if let Some(sum) = periods.get_mut(&start_ms) {
            *sum = sum.saturating_sub(time);
            if *sum == 0 {
                periods.remove(&start_ms);
            }
        }
        if periods.is_empty() {
            users.remove(key.user);
        }
        if users.is_empty() {
            self.by_quota.remove(key.quota);
        }
    }

    /// Keeps the entries for which `keep(limit, start_ms)` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(LimitKey<'_>, u64) -> bool) {
        for (quota, users) in &mut self.by_quota {
            for (user, periods) in users.iter_mut() {
                periods.retain(|start, _| keep(LimitKey { quota, user }, *start));
            }
            users.retain(|_, periods| !periods.is_empty());
        }
        self.by_quota.retain(|_, users| !users.is_empty());
    }
}

/// A limit on GPU-time.
#[derive(Clone, Copy)]
pub(super) struct Limit<'b> {
    pub(super) quota: &'b Document<Quota>,
    /// Whether it holds for each user.
    pub(super) per_user: bool,
    pub(super) hours: &'b GpuHours,
    rules: &'b ZoneRules,
}

impl<'b> Limit<'b> {
    pub(super) fn of(bundle: &'b Bundle, quota: &'b Document<Quota>, per_user: bool) -> Option<Self> {
        let hours = quota.spec.gpu_hours_of(per_user)?;
        Some(Self { quota, per_user, hours, rules: bundle.source.zones.get(&hours.time_zone)? })
    }

    /// The limits of a quota.
    fn all(bundle: &'b Bundle, quota: &'b Document<Quota>) -> impl Iterator<Item = Self> {
        [false, true].into_iter().filter_map(|per_user| Self::of(bundle, quota, per_user))
    }

    pub(super) fn key<'k>(&'k self, user: &'k str) -> LimitKey<'k> {
        LimitKey { quota: &self.quota.name, user: if self.per_user { user } else { "" } }
    }

    fn span_at(&self, at_ms: u64) -> TimeSpan {
        self.hours.per.span_at(self.rules, at_ms)
    }

    /// The periods that a booking touches.
    pub(super) fn spans(self, from_ms: u64, until_ms: u64) -> impl Iterator<Item = TimeSpan> + use<'b> {
        let first = (from_ms < until_ms).then(|| self.span_at(from_ms));
        let next = move |span: &TimeSpan| (span.end_ms < until_ms).then(|| self.span_at(span.end_ms));
        std::iter::successors(first, next).take(MAX_PERIODS)
    }

    fn covers(&self, booking: &Booking<'_>) -> bool {
        self.quota.spec.covers_class(booking.class) && !(self.per_user && booking.user.is_empty())
    }

    /// Denies what does not fit.
    fn check(&self, booked: Option<&GpuTimeTable>, before: &[Booking<'_>], after: &[Booking<'_>]) -> CheckResult<()> {
        let before = || before.iter().filter(|booking| self.covers(booking));
        let after = || after.iter().filter(|booking| self.covers(booking));
        let (Some(from_ms), Some(until_ms)) = (after().map(|it| it.from_ms).min(), after().map(|it| it.until_ms).max())
        else {
            return Ok(());
        };
        let user = after().next().map_or("", |booking| booking.user);
        let limit = self.hours.limit();
        for span in self.spans(from_ms, until_ms) {
            let sum = |bookings: &mut dyn Iterator<Item = &Booking<'_>>| {
                bookings.fold(0_u128, |sum, booking| sum.saturating_add(booking.time_in(span)))
            };
            let (was, becomes) = (sum(&mut before()), sum(&mut after()));
            let others = booked.map_or(0, |table| table.get(self.key(user), span.start_ms)).saturating_sub(was);
            // What only gets less is never denied, even above a limit that was lowered.
            if becomes <= was || others.saturating_add(becomes) <= limit {
                continue;
            }
            let whole = after().fold(0_u128, |sum, booking| sum.saturating_add(booking.whole()));
            let most_ms = after().map(|booking| booking.most_ms).max().unwrap_or(0);
            if whole > limit.saturating_mul(self.most_periods(most_ms)) {
                return self.deny_for_good(whole);
            }
            let milli = after().fold(0_u64, |sum, booking| sum.saturating_add(booking.gpus_milli));
            // Of the time before this period, the part in which the lease may not have begun yet is lost.
            let slack_ms = until_ms.saturating_sub(from_ms).saturating_sub(most_ms);
            let before_ms = span.start_ms.saturating_sub(from_ms).saturating_sub(slack_ms);
            let left_ms = limit.saturating_sub(others) / u128::from(milli.max(1));
            let fits_ms = before_ms.saturating_add(u64::try_from(left_ms).unwrap_or(u64::MAX));
            return self.deny(span, others, becomes, fits_ms);
        }
        Ok(())
    }

    /// The most periods that a lease of this length touches.
    fn most_periods(&self, length_ms: u64) -> u128 {
        let shortest_days = match self.hours.per {
            CalendarPeriod::Day => 1,
            CalendarPeriod::Week => 7,
            CalendarPeriod::Month => 28,
            CalendarPeriod::Year => 365,
        };
        // Clocks that are changed make a period shorter, by at most half a day.
        u128::from(length_ms / (shortest_days * USUAL_DAY_MS - USUAL_DAY_MS / 2)) + 2
    }

    fn subject(&self) -> String {
        self.quota.spec.shown(&self.quota.name, self.per_user)
    }

    pub(super) fn cite(&self) -> DocRef {
        self.quota.cite(if self.per_user { "perUser.gpuHours.limit" } else { "gpuHours.limit" })
    }

    fn deny_for_good(&self, needs: u128) -> CheckResult<()> {
        let by = self.cite();
        let (limit, per) = (show_gpu_hours(self.hours.limit()), self.hours.per);
        let message = format!(
            "{} allows {limit} GPU-hours per {per}, and the request needs {}",
            self.subject(),
            show_needed(needs)
        );
        let unblock = format!("ask for fewer GPUs or a shorter lease, or raise the limit in {by}");
        deny(DenyCode::RequestTooLarge, message, unblock, vec![by])
    }

    fn deny(&self, span: TimeSpan, others: u128, needs: u128, fits_ms: u64) -> CheckResult<()> {
        let by = self.cite();
        let (limit, per, end) = (self.hours.limit(), self.hours.per, show_time(span.end_ms));
        let left = limit.saturating_sub(others);
        let message = format!(
            "{} allows {} GPU-hours per {per}; {} are left in the {per} until {end}, and the lease needs {}",
            self.subject(),
            show_gpu_hours(limit),
            show_gpu_hours(left),
            show_needed(needs)
        );
        let shorter = match fits_ms - fits_ms % 1_000 {
            ms if ms < SHORTEST_PROPOSED_MS => String::new(),
            ms => format!("ask for at most {}, ", show_duration(ms)),
        };
        let unblock = format!("{shorter}wait until {end}, or raise the limit in {by}");
        deny(DenyCode::GpuHoursExhausted, message, unblock, vec![by])
    }
}

/// Rounds up to thousandths, so that what does not fit is never shown as what is left.
fn show_needed(time: u128) -> String {
    show_gpu_hours(time.saturating_add(GPU_HOUR / 1_000 - 1))
}

impl Bundle {
    /// Whether a quota limits the GPU-time of a tenant.
    #[must_use]
    pub fn limits_gpu_time_of(&self, tenant: &str) -> bool {
        self.quotas_of(tenant).any(|quota| [false, true].iter().any(|each| quota.spec.gpu_hours_of(*each).is_some()))
    }

    /// The quotas that limit a tenant, directly or through its institution.
    pub(crate) fn quotas_of(&self, tenant: &str) -> impl Iterator<Item = &Document<Quota>> {
        let names = self.quotas_by_tenant.get(tenant).map_or(&[][..], Vec::as_slice);
        names.iter().filter_map(|name| self.quotas.get(name))
    }

    fn gpu_time_limits_of(&self, tenant: &str) -> impl Iterator<Item = Limit<'_>> {
        self.quotas_of(tenant).flat_map(|quota| Limit::all(self, quota))
    }

    /// Calls `each(limit, period, GPU-time)` for each limit that counts a booking, and each period that it touches.
    pub fn for_each_period(&self, booking: &Booking<'_>, mut each: impl FnMut(LimitKey<'_>, TimeSpan, u128)) {
        for limit in self.gpu_time_limits_of(booking.tenant).filter(|limit| limit.covers(booking)) {
            for span in limit.spans(booking.from_ms, booking.until_ms) {
                each(limit.key(booking.user), span, booking.time_in(span));
            }
        }
    }

    /// A limit on GPU-time and its period around a time; `None` if there is no such limit.
    #[must_use]
    pub fn gpu_time_limit(&self, key: LimitKey<'_>, at_ms: u64) -> Option<(u128, TimeSpan)> {
        let limit = Limit::of(self, self.quotas.get(key.quota)?, !key.user.is_empty())?;
        Some((limit.hours.limit(), limit.span_at(at_ms)))
    }

    /// Whether a limit counts the same GPU-time as in another bundle.
    #[must_use]
    pub fn counts_same_gpu_time(&self, other: &Self, key: LimitKey<'_>) -> bool {
        let counted = |bundle: &Self| {
            let spec = &bundle.quotas.get(key.quota)?.spec;
            let hours = spec.gpu_hours_of(!key.user.is_empty())?;
            Some((spec.subject.clone(), spec.classes.clone(), hours.per, hours.time_zone.clone()))
        };
        let counted = [self, other].map(counted);
        counted[0].is_some() && counted[0] == counted[1]
    }

    /// When the periods of limits on GPU-time end that contain a time.
    pub(crate) fn ends_of_periods(&self, at_ms: u64) -> impl Iterator<Item = u64> {
        self.quotas.values().flat_map(move |quota| Limit::all(self, quota).map(move |it| it.span_at(at_ms).end_ms))
    }

    /// Whether limits on GPU-time allow bookings of one tenant to become others. `booked` has all bookings and use, with
    /// those before the change.
    ///
    /// # Errors
    /// The denial.
    pub fn may_rebook(
        &self,
        booked: &GpuTimeTable,
        before: &[Booking<'_>],
        after: &[Booking<'_>],
    ) -> Result<(), Box<super::Denial>> {
        let Some(tenant) = after.first().map(|booking| booking.tenant) else { return Ok(()) };
        self.gpu_time_limits_of(tenant).try_for_each(|limit| limit.check(Some(booked), before, after))
    }
}

/// Denies a lease for which a quota has not enough GPU-hours left.
pub(super) fn check_gpu_time(
    bundle: &Bundle,
    quota: &Document<Quota>,
    booked: Option<&GpuTimeTable>,
    booking: &Booking<'_>,
) -> CheckResult<()> {
    let mut limits = Limit::all(bundle, quota);
    limits.try_for_each(|limit| limit.check(booked, &[], std::slice::from_ref(booking)))
}
