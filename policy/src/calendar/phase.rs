//! Whether a schedule is open at a time, and until when.

use crate::calendar::period::TimeSpan;
use crate::calendar::zones::{DAY_MS, ZoneRules};
use crate::documents::Schedule;
use crate::documents::schedule::weekly_window::{MINUTES_PER_DAY, Window};

const MINUTE_MS: i64 = 60_000;
/// Later times count as this one: millions of years away, with room for sums.
const LATEST_MS: i64 = i64::MAX / 4;
const DAYS_PER_WEEK: i64 = 7;
/// Days for which the next change is looked for. A schedule can have exceptions on every date.
const MAX_DAYS_AHEAD: i64 = 35;
/// Days for which the windows of a schedule are listed: more than the longest lease lasts.
const MAX_SPAN_DAYS: i64 = 100;
/// Days for which windows that touch keep a schedule open: not a whole week, and the clocks may be set back meanwhile.
const MAX_DAYS_OPEN: i64 = 8;
/// 1970-01-01 was a Thursday.
const FIRST_WEEKDAY: i64 = 3;

/// The state of a schedule at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Whether it is open.
    pub is_open: bool,
    /// When that changes, in milliseconds since 1970; `None` if not within five weeks.
    pub until_ms: Option<u64>,
}

impl Phase {
    /// The phase of what is in force outside the schedule.
    #[must_use]
    pub const fn inverted(self) -> Self {
        Self { is_open: !self.is_open, ..self }
    }
}

impl Schedule {
    /// The phase at a time in milliseconds since 1970. Windows that touch or overlap are one. A window begins and ends
    /// at the first moment at which the clocks of its zone show that time or a later one.
    #[must_use]
    pub fn phase_at(&self, rules: &ZoneRules, at_ms: u64) -> Phase {
        let now = i64::try_from(at_ms).unwrap_or(i64::MAX).min(LATEST_MS);
        let today = rules.local_ms(now).div_euclid(DAY_MS);
        let longest = self.windows.iter().map(|window| window.minutes).max().unwrap_or(0);
        // One more day: the clocks may be set back meanwhile.
        let first_day = today - i64::from(longest.div_ceil(MINUTES_PER_DAY)) - 1;
        let mut open_until = now;
        for (from, until) in self.windows_between(rules, first_day, today + MAX_DAYS_AHEAD) {
            if from > open_until {
                let is_open = open_until > now;
                let change = if is_open { open_until } else { from };
                return Phase { is_open, until_ms: u64::try_from(change).ok() };
            }
            open_until = open_until.max(until);
        }
        let is_open = open_until > now;
        Phase { is_open, until_ms: u64::try_from(open_until).ok().filter(|_| is_open) }
    }

    /// The times that overlap `from_ms..until_ms` at which it is open, in their order: each from its begin to its end.
    /// Looks 100 days ahead.
    #[must_use]
    pub fn spans(&self, rules: &ZoneRules, from_ms: u64, until_ms: u64) -> Vec<TimeSpan> {
        let [from, until] = [from_ms, until_ms].map(|at| i64::try_from(at).unwrap_or(i64::MAX).min(LATEST_MS));
        let day_of = |at: i64| rules.local_ms(at).div_euclid(DAY_MS);
        let first_day = day_of(from) - MAX_DAYS_OPEN;
        let last_day = day_of(until).min(day_of(from) + MAX_SPAN_DAYS) + MAX_DAYS_OPEN;
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for (begin, end) in self.windows_between(rules, first_day, last_day) {
            match spans.last_mut() {
                Some((_, last)) if begin <= *last => *last = end.max(*last),
                _ => spans.push((begin, end)),
            }
        }
        let unsigned = |at: i64| u64::try_from(at).unwrap_or(0);
        let overlapping = spans.into_iter().filter(|(begin, end)| *end > from && *begin < until);
        overlapping.map(|(begin, end)| TimeSpan { start_ms: unsigned(begin), end_ms: unsigned(end) }).collect()
    }

    /// Begin and end of the windows that begin on some days, in order of their begin. A window in a skipped hour is
    /// empty.
    fn windows_between(&self, rules: &ZoneRules, first_day: i64, last_day: i64) -> impl Iterator<Item = (i64, i64)> {
        let spans = (first_day..=last_day).flat_map(move |day| {
            self.windows_on(day).map(move |window| {
                let from = day * DAY_MS + i64::from(window.from % MINUTES_PER_DAY) * MINUTE_MS;
                (rules.instant_ms(from), rules.instant_ms(from + i64::from(window.minutes) * MINUTE_MS))
            })
        });
        spans.filter(|(from, until)| from < until)
    }

    /// The windows that begin on a day, counted from 1970 in the schedule's zone.
    fn windows_on(&self, day: i64) -> impl Iterator<Item = &Window> {
        let weekday = (day + FIRST_WEEKDAY).rem_euclid(DAYS_PER_WEEK);
        let is_excepted = i32::try_from(day).is_ok_and(|day| self.except.contains(&day));
        let first = self.windows.partition_point(move |it| i64::from(it.from / MINUTES_PER_DAY) < weekday);
        let of_day = move |it: &&Window| i64::from(it.from / MINUTES_PER_DAY) == weekday;
        self.windows[first..].iter().take_while(of_day).filter(move |_| !is_excepted)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;

    use super::*;

    const HOUR: u32 = 60;

    fn utc(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    fn schedule(windows: &[(u32, u32, u32)]) -> Schedule {
        let mut windows: Vec<Window> = windows
            .iter()
            .map(|(day, from, minutes)| Window { from: day * MINUTES_PER_DAY + from, minutes: *minutes })
            .collect();
        windows.sort_unstable();
        let time_zone = "Europe/Zurich".to_owned();
        Schedule { time_zone, windows, except: BTreeSet::new(), description: String::new() }
    }

    /// Weekdays from 08:00 to 18:00.
    fn working_hours() -> Schedule {
        schedule(&[0, 1, 2, 3, 4].map(|day| (day, 8 * HOUR, 10 * HOUR)))
    }

    /// Every night from 20:00 to 06:00.
    fn nights() -> Schedule {
        schedule(&[0, 1, 2, 3, 4, 5, 6].map(|day| (day, 20 * HOUR, 10 * HOUR)))
    }

    #[test]
    fn a_window_opens_and_closes_by_the_clock_of_its_zone() {
        let rules = ZoneRules::look_up("Europe/Zurich").unwrap();
        for (schedule, at, is_open, until) in [
            // A Wednesday in winter, and one in summer.
            (working_hours(), "2027-01-13T06:59:59.999Z", false, "2027-01-13T07:00:00Z"),
            (working_hours(), "2027-01-13T07:00:00Z", true, "2027-01-13T17:00:00Z"),
            (working_hours(), "2027-07-14T06:00:00Z", true, "2027-07-14T16:00:00Z"),
            // Over the weekend.
            (working_hours(), "2027-07-16T16:00:00Z", false, "2027-07-19T06:00:00Z"),
            // Over midnight, and over the end of the week.
            (nights(), "2027-07-14T23:00:00Z", true, "2027-07-15T04:00:00Z"),
            (nights(), "2027-07-18T23:00:00Z", true, "2027-07-19T04:00:00Z"),
            // The clocks are set forward: a night of nine hours. Then back: one of eleven.
            (nights(), "2027-03-27T19:00:00Z", true, "2027-03-28T04:00:00Z"),
            (nights(), "2027-10-30T18:00:00Z", true, "2027-10-31T05:00:00Z"),
            // Windows that touch and overlap are one.
            (
                schedule(&[(0, 0, 24 * HOUR), (1, 0, 2 * HOUR), (1, HOUR, 5 * HOUR)]),
                "2027-07-12T10:00:00Z",
                true,
                "2027-07-13T04:00:00Z",
            ),
            // In the hour that is skipped, and the one that comes twice.
            (schedule(&[(6, 2 * HOUR, 30)]), "2027-03-28T00:30:00Z", false, "2027-04-04T00:00:00Z"),
            (schedule(&[(6, 2 * HOUR, 60)]), "2027-10-31T00:30:00Z", true, "2027-10-31T02:00:00Z"),
            (schedule(&[(6, 2 * HOUR, 30)]), "2027-10-31T01:10:00Z", false, "2027-11-07T01:00:00Z"),
        ] {
            let expected = Phase { is_open, until_ms: Some(utc(until)) };
            assert_eq!(schedule.phase_at(&rules, utc(at)), expected, "{at} {:?}", schedule.windows);
        }
    }

    #[test]
    fn no_window_begins_on_an_excepted_date() {
        let rules = ZoneRules::look_up("Europe/Zurich").unwrap();
        // 2026-12-25 is a Friday.
        let mut schedule = working_hours();
        schedule.except.insert(20_812);
        let phase = schedule.phase_at(&rules, utc("2026-12-25T10:00:00Z"));
        assert_eq!(phase, Phase { is_open: false, until_ms: Some(utc("2026-12-28T07:00:00Z")) });
        schedule.except.extend(20_812..20_900);
        let phase = schedule.phase_at(&rules, utc("2026-12-25T10:00:00Z"));
        assert_eq!(phase, Phase { is_open: false, until_ms: None });
        assert!(phase.inverted().is_open);
        for never in [u64::MAX, i64::MAX as u64] {
            assert!(working_hours().phase_at(&rules, never).until_ms.is_some());
        }
    }

    #[test]
    fn each_change_is_where_the_phase_before_said() {
        let rules = ZoneRules::look_up("Europe/Zurich").unwrap();
        for schedule in
            [working_hours(), nights(), schedule(&[(6, 90, 60), (6, 2 * HOUR, 45), (3, 23 * HOUR, 50 * HOUR)])]
        {
            let (mut at, end) = (utc("2027-01-01T00:00:00Z"), utc("2027-12-31T00:00:00Z"));
            let mut changes = 0;
            while at < end {
                let phase = schedule.phase_at(&rules, at);
                let until = phase.until_ms.unwrap();
                assert!(until > at);
                assert_eq!(schedule.phase_at(&rules, until - 1), phase);
                assert_eq!(schedule.phase_at(&rules, until).is_open, !phase.is_open);
                (at, changes) = (until, changes + 1);
            }
            assert!(changes > 90, "{changes}");
        }
    }
}
