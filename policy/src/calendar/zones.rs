//! Time zones: the UTC offsets of each IANA zone that a bundle names.
//!
//! Releases of the IANA database change the rules of zones, and brokers of several releases must decide alike. So the
//! broker that receives a bundle looks its zones up once, and their offsets travel with the files.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use serde::{Deserialize, Serialize};

use crate::limits::{LAST_ZONE_MS, MAX_ZONE_CHANGES};

pub(crate) const SECOND_MS: i64 = 1_000;
pub(crate) const DAY_MS: i64 = 86_400_000;
/// More than any zone differs from UTC.
const MAX_OFFSET_S: i32 = 24 * 3_600;

/// The offsets of the zones of a bundle, by IANA name.
pub type Zones = BTreeMap<String, ZoneRules>;

/// The UTC offsets of one time zone from 1970 to 2060.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneRules {
    /// Offset in 1970, in seconds east of UTC.
    first_s: i32,
    /// Changes by time: milliseconds since 1970, and the offset from then on in seconds east of UTC.
    changes: Vec<(u64, i32)>,
}

impl ZoneRules {
    /// The rules of a zone in the IANA database of this program; `None` for an unknown name.
    pub(crate) fn look_up(name: &str) -> Option<Self> {
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        let start = Timestamp::UNIX_EPOCH;
        let mut rules = Self { first_s: zone.to_offset(start).seconds(), changes: Vec::new() };
        for change in zone.following(start) {
            let Ok(at_ms) = u64::try_from(change.timestamp().as_millisecond()) else { continue };
            if at_ms > LAST_ZONE_MS || rules.changes.len() == MAX_ZONE_CHANGES {
                break;
            }
            rules.changes.push((at_ms, change.offset().seconds()));
        }
        Some(rules)
    }

    /// Whether rules that came with a bundle can be used: bounded, in order, with possible offsets.
    pub(crate) fn are_sound(&self) -> bool {
        let offsets = self.changes.iter().map(|(_, offset)| *offset).chain([self.first_s]);
        self.changes.len() <= MAX_ZONE_CHANGES
            && self.changes.iter().all(|(at_ms, _)| *at_ms <= LAST_ZONE_MS)
            && self.changes.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && offsets.into_iter().all(|offset| offset.abs() <= MAX_OFFSET_S)
    }

    /// What a clock in the zone shows at a time; both in milliseconds since 1970 began, in UTC and in the zone.
    pub(crate) fn local_ms(&self, at_ms: i64) -> i64 {
        let passed = self.changes.partition_point(|(change, _)| i64::try_from(*change).is_ok_and(|it| it <= at_ms));
        at_ms + self.offset_ms(passed)
    }

    /// The first time at which a clock in the zone shows `local_ms` or later: the earlier of two, where the clock is set
    /// back over it, and the moment of the change, where it is set forward over it.
    pub(crate) fn instant_ms(&self, local_ms: i64) -> i64 {
        let day_before = local_ms - DAY_MS;
        let mut passed = self.changes.partition_point(|(at, _)| i64::try_from(*at).is_ok_and(|at| at <= day_before));
        loop {
            let begin = passed.checked_sub(1).and_then(|last| i64::try_from(self.changes[last].0).ok());
            let at = (local_ms - self.offset_ms(passed)).max(begin.unwrap_or(i64::MIN));
            let end = self.changes.get(passed).and_then(|(end, _)| i64::try_from(*end).ok());
            if end.is_none_or(|end| at < end) {
                return at;
            }
            passed += 1;
        }
    }

    /// The offset after this number of changes, in milliseconds.
    fn offset_ms(&self, passed: usize) -> i64 {
        let seconds = passed.checked_sub(1).and_then(|last| self.changes.get(last)).map_or(self.first_s, |it| it.1);
        i64::from(seconds) * SECOND_MS
    }
}

/// The names of all zones in the IANA database of this program, for suggestions.
pub(crate) fn zone_names() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.as_str().to_owned()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use jiff::civil::DateTime;
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn local(text: &str) -> i64 {
        text.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap().timestamp().as_millisecond()
    }

    fn utc(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn skipped_and_repeated_hours_have_one_instant() {
        let zurich = ZoneRules::look_up("Europe/Zurich").unwrap();
        for (shown, at) in [
            ("2027-01-15T08:00", "2027-01-15T07:00:00Z"),
            ("2027-07-15T08:00", "2027-07-15T06:00:00Z"),
            // 02:00 to 03:00 does not exist on this day.
            ("2027-03-28T01:59", "2027-03-28T00:59:00Z"),
            ("2027-03-28T02:30", "2027-03-28T01:00:00Z"),
            ("2027-03-28T03:00", "2027-03-28T01:00:00Z"),
            // 02:00 to 03:00 comes twice on this one.
            ("2027-10-31T02:30", "2027-10-31T00:30:00Z"),
            ("2027-10-31T03:00", "2027-10-31T02:00:00Z"),
        ] {
            assert_eq!(zurich.instant_ms(local(shown)), utc(at), "{shown}");
        }
        assert!(zurich.are_sound());
        assert_eq!(ZoneRules::look_up("Europe/Zurch"), None);
        assert_eq!(ZoneRules::look_up("UTC").unwrap(), ZoneRules { first_s: 0, changes: Vec::new() });
    }

    #[test]
    fn made_up_rules_are_refused() {
        let rules = |first_s, changes| ZoneRules { first_s, changes };
        assert!(rules(3_600, vec![(1, 7_200), (2, 3_600)]).are_sound());
        for bad in [
            rules(90_000, vec![]),
            rules(0, vec![(2, 0), (2, 60)]),
            rules(0, vec![(u64::MAX, 0)]),
            rules(0, (0..1_000).map(|at| (at, 0)).collect()),
        ] {
            assert!(!bad.are_sound(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn an_instant_shows_its_local_time_or_follows_a_change(minute in 0_i64..40_000_000, zone in 0_usize..4) {
            let name = ["Europe/Zurich", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu"][zone];
            let rules = ZoneRules::look_up(name).unwrap();
            let shown = minute * 60_000;
            let at = rules.instant_ms(shown);
            prop_assert!(rules.local_ms(at) >= shown);
            prop_assert!(rules.local_ms(at - 1) < shown || rules.local_ms(at) > shown || rules.local_ms(at - 1) > shown);
            prop_assert!(rules.instant_ms(shown + 60_000) >= at);
        }

        #[test]
        fn local_times_are_those_of_the_database(at_s in 0_i64..2_800_000_000, zone in 0_usize..4) {
            let name = ["Europe/Zurich", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu"][zone];
            let rules = ZoneRules::look_up(name).unwrap();
            let offset = TimeZoneDatabase::bundled().get(name).unwrap().to_offset(Timestamp::from_second(at_s).unwrap());
            prop_assert_eq!(rules.local_ms(at_s * 1_000), (at_s + i64::from(offset.seconds())) * 1_000);
        }
    }
}
