//! Durations, points in time and ages.

const DURATION_REMEDY: &str = "write a duration as 30m, 2h, 1h30m or 3d";
/// Milliseconds of a second.
pub(super) const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Milliseconds of a day.
pub(super) const DAY: u64 = 24 * HOUR;

/// Parses `2h`, `1h30m`, `90s` or `3d` as milliseconds; units go from large to small, each at most once.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let fail = || format!("{text:?} is not a duration; {DURATION_REMEDY}");
    let (mut rest, mut total, mut largest) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_lowercase).count();
        let number: u64 = rest[..digits].parse().map_err(|_| fail())?;
        let unit = match &rest[digits..digits + letters] {
            "d" => DAY,
            "h" => HOUR,
            "m" => MINUTE,
            "s" => SECOND,
            "ms" => 1,
            _ => return Err(fail()),
        };
        if unit >= largest {
            return Err(fail());
        }
        largest = unit;
        total = number.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or_else(fail)?;
        rest = &rest[digits + letters..];
    }
    if total == 0 { Err(fail()) } else { Ok(total) }
}

/// Parses a point in time as milliseconds since 1970: `2026-11-23T08:00Z` with any UTC offset, or a duration from now
/// such as `2h`.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_time_ms(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if let Ok(from_now) = parse_duration_ms(text) {
        return Ok(crate::clock::now_ms().saturating_add(from_now));
    }
    let moment: Option<jiff::Timestamp> = text.parse().ok();
    moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok()).filter(|ms| *ms > 0).ok_or_else(|| {
        format!("{text:?} is not a time; write 2026-11-23T08:00Z, 2026-11-23T09:00+01:00, or 2h for 2 hours from now")
    })
}

/// A duration for people: its largest unit and, unless zero, the next one, as in `1h30m`.
#[must_use]
pub fn format_duration(ms: u64) -> String {
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")];
    let mut text = String::new();
    let mut rest = ms;
    let mut shown = 0;
    for (unit, name) in units {
        if rest >= unit && shown < 2 {
            text.push_str(&format!("{}{name}", rest / unit));
            shown += 1;
        } else if shown == 1 {
            // Never `1d5m`: it would read as precise to the minute.
            shown = 2;
        }
        rest %= unit;
    }
    if text.is_empty() { format!("{ms}ms") } else { text }
}

/// A point in time to the second, as `2026-11-23T08:00:00Z`; none for one that no calendar has.
#[must_use]
pub fn format_time(ms: u64) -> Option<String> {
    let moment = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(moment.round(jiff::Unit::Second).ok()?.to_string())
}

/// A time relative to now, for people: `5m ago`, `in 2h`; `-` for no time (0).
#[must_use]
pub fn age(at_ms: u64, now_ms: u64) -> String {
    let seconds = |ms: u64| format_duration(ms - ms % SECOND);
    match at_ms {
        0 => "-".to_owned(),
        at if at.abs_diff(now_ms) < SECOND => "now".to_owned(),
        at if at > now_ms => format!("in {}", seconds(at - now_ms)),
        at => format!("{} ago", seconds(now_ms - at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_survive_a_round_trip() {
        for (text, ms) in [("2h", 2 * HOUR), ("1h30m", 90 * MINUTE), ("3d", 3 * DAY), ("45s", 45_000), ("250ms", 250)] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
            assert_eq!(format_duration(ms), text);
        }
        assert_eq!(parse_duration_ms("90s"), Ok(90_000));
        assert_eq!(format_duration(DAY + 5 * MINUTE), "1d");
        for bad in ["", "2", "h", "2x", "1m1h", "1h1h", "-1h", "0s", "1.5h", "99999999999999999999d", "2 h", "é"] {
            assert!(parse_duration_ms(bad).expect_err(bad).contains("1h30m"), "{bad}");
        }
    }

    #[test]
    fn moments_are_times_or_times_from_now() {
        for text in ["2026-11-23T08:00Z", "2026-11-23T09:00:00+01:00", " 2026-11-23T08:00:00Z "] {
            assert_eq!(parse_time_ms(text), Ok(1_795_420_800_000), "{text}");
        }
        let before = crate::clock::now_ms();
        let moment = parse_time_ms("1h30m").expect("good");
        assert!((before + 90 * MINUTE..=crate::clock::now_ms() + 90 * MINUTE).contains(&moment));
        for bad in ["", "tomorrow", "2026-11-23", "2026-11-23T08:00", "2026-13-01T00:00Z", "1969-01-01T00:00Z", "-2h"] {
            assert!(parse_time_ms(bad).expect_err(bad).contains("from now"), "{bad}");
        }
    }

    #[test]
    fn ages_read_well() {
        assert_eq!(age(0, 10), "-");
        assert_eq!(age(10_000, 10_400), "now");
        assert_eq!(age(10_000, 75_400), "1m5s ago");
        assert_eq!(age(HOUR + 500, 0), "in 1h");
    }
}
