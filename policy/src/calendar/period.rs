//! Calendar periods in a time zone: days, weeks, months and years.

use std::fmt;

use jiff::ToSpan;
use jiff::civil::{Date, Weekday, date};
use serde::{Deserialize, Serialize};

use crate::calendar::zones::{DAY_MS, ZoneRules};

/// Later times count as this one: in the year 9000, with room for one more period in the calendar.
const LAST_PERIOD_MS: u64 = 221_845_392_000_000;

/// The length of a calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CalendarPeriod {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// A month of the calendar.
    Month,
    /// A year of the calendar.
    Year,
}

/// From `start_ms` on and before `end_ms`, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan {
    /// The first millisecond.
    pub start_ms: u64,
    /// The first millisecond after it.
    pub end_ms: u64,
}

impl TimeSpan {
    /// The time that it shares with `from_ms..until_ms`, in milliseconds.
    #[must_use]
    pub const fn overlap_ms(self, from_ms: u64, until_ms: u64) -> u64 {
        let from_ms = if from_ms > self.start_ms { from_ms } else { self.start_ms };
        let until_ms = if until_ms < self.end_ms { until_ms } else { self.end_ms };
        until_ms.saturating_sub(from_ms)
    }
}

impl CalendarPeriod {
    /// The words of documents.
    pub(crate) const WORDS: [(&'static str, Self); 4] =
        [("day", Self::Day), ("week", Self::Week), ("month", Self::Month), ("year", Self::Year)];

    /// The word of documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The period around a time in milliseconds since 1970. It begins and ends at the first moment at which the clocks of
    /// the zone show midnight or later, so it is an hour shorter or longer when they are changed.
    #[must_use]
    pub fn span_at(self, rules: &ZoneRules, at_ms: u64) -> TimeSpan {
        let at = i64::try_from(at_ms.min(LAST_PERIOD_MS)).unwrap_or(i64::MAX);
        let today = rules.local_ms(at).div_euclid(DAY_MS);
        let mut first = self.first_day(day(today));
        // Clocks that are set back over midnight show the day before once more.
        loop {
            let next = self.first_day_after(first);
            let end = start_of(rules, next);
            if end > at {
                return TimeSpan { start_ms: unsigned(start_of(rules, first)), end_ms: unsigned(end) };
            }
            first = next;
        }
    }

    fn first_day(self, day: Date) -> Date {
        match self {
            Self::Day => day,
            Self::Week => day.saturating_sub(i64::from(day.weekday().since(Weekday::Monday)).days()),
            Self::Month => day.first_of_month(),
            Self::Year => day.first_of_year(),
        }
    }

    fn first_day_after(self, first: Date) -> Date {
        first.saturating_add(match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
        })
    }
}

impl fmt::Display for CalendarPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const EPOCH: Date = date(1970, 1, 1);

fn day(since_1970: i64) -> Date {
    EPOCH.saturating_add(since_1970.days())
}

/// The first moment of a day in a zone.
fn start_of(rules: &ZoneRules, day: Date) -> i64 {
    let days = EPOCH.until(day).map_or(0, |span| i64::from(span.get_days()));
    rules.instant_ms(days.saturating_mul(DAY_MS))
}

fn unsigned(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    const ALL: [CalendarPeriod; 4] =
        [CalendarPeriod::Day, CalendarPeriod::Week, CalendarPeriod::Month, CalendarPeriod::Year];

    fn utc(text: &str) -> u64 {
        unsigned(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn periods_begin_at_midnight_of_their_zone() {
        let berlin = ZoneRules::look_up("Europe/Berlin").unwrap();
        for (period, at, from, until) in [
            (CalendarPeriod::Day, "2027-01-13T22:59:59.999Z", "2027-01-12T23:00:00Z", "2027-01-13T23:00:00Z"),
            (CalendarPeriod::Day, "2027-01-13T23:00:00Z", "2027-01-13T23:00:00Z", "2027-01-14T23:00:00Z"),
            // Of 23 hours, and of 25.
            (CalendarPeriod::Day, "2027-03-28T12:00:00Z", "2027-03-27T23:00:00Z", "2027-03-28T22:00:00Z"),
            (CalendarPeriod::Day, "2027-10-31T12:00:00Z", "2027-10-30T22:00:00Z", "2027-10-31T23:00:00Z"),
            // 2027-01-13 is a Wednesday, and 2027-03-28 a Sunday.
            (CalendarPeriod::Week, "2027-01-13T12:00:00Z", "2027-01-10T23:00:00Z", "2027-01-17T23:00:00Z"),
            (CalendarPeriod::Week, "2027-03-28T12:00:00Z", "2027-03-21T23:00:00Z", "2027-03-28T22:00:00Z"),
            (CalendarPeriod::Month, "2028-02-29T12:00:00Z", "2028-01-31T23:00:00Z", "2028-02-29T23:00:00Z"),
            (CalendarPeriod::Month, "2027-03-31T22:30:00Z", "2027-03-31T22:00:00Z", "2027-04-30T22:00:00Z"),
            (CalendarPeriod::Year, "2026-12-31T23:00:00Z", "2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z"),
            (CalendarPeriod::Year, "2026-12-31T22:59:59Z", "2025-12-31T23:00:00Z", "2026-12-31T23:00:00Z"),
        ] {
            let expected = TimeSpan { start_ms: utc(from), end_ms: utc(until) };
            assert_eq!(period.span_at(&berlin, utc(at)), expected, "{period} {at}");
        }
    }

    #[test]
    fn clocks_set_back_over_midnight_begin_no_day_twice() {
        // In 2007 the clocks of St. John's went from 00:01 on November 4 back to 23:01 on November 3.
        let rules = ZoneRules::look_up("America/St_Johns").unwrap();
        let first = CalendarPeriod::Day.span_at(&rules, utc("2007-11-04T02:30:30Z"));
        assert_eq!(first.start_ms, utc("2007-11-04T02:30:00Z"));
        // The clocks show November 3 again.
        assert_eq!(CalendarPeriod::Day.span_at(&rules, utc("2007-11-04T02:40:00Z")), first);
    }

    #[test]
    fn every_time_has_a_period() {
        let rules = ZoneRules::look_up("Pacific/Kiritimati").unwrap();
        for period in ALL {
            for at in [0, 1, LAST_PERIOD_MS, u64::MAX] {
                let span = period.span_at(&rules, at);
                assert!(
                    span.start_ms <= at.min(LAST_PERIOD_MS) && span.end_ms > span.start_ms,
                    "{period} {at} {span:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn periods_leave_no_gap(at in 0_u64..2_800_000_000_000, zone in 0_usize..5) {
            let name =
                ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "America/Havana", "Pacific/Apia"][zone];
            let rules = ZoneRules::look_up(name).unwrap();
            for period in ALL {
                let span = period.span_at(&rules, at);
                prop_assert!((span.start_ms..span.end_ms).contains(&at));
                prop_assert_eq!(period.span_at(&rules, span.start_ms), span);
                prop_assert_eq!(period.span_at(&rules, span.end_ms - 1), span);
                prop_assert_eq!(period.span_at(&rules, span.end_ms).start_ms, span.end_ms);
            }
        }
    }
}
