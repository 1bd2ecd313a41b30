//! Parses and shows durations, GPUs, credits and dates. Values are integers with a unit, never floating point.

pub mod quantity;

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};

use self::quantity::plain_milli;
use crate::limits::{MAX_DURATION_MS, MAX_GPU_HOURS_MILLI, MAX_GPUS_MILLI};

/// Thousandths of one GPU.
pub(crate) const WHOLE_MILLI: u64 = 1_000;
/// One GPU for an hour, in thousandths of a GPU × milliseconds.
pub(crate) const GPU_HOUR: u128 = 1_000 * 3_600_000;
/// One million credits.
const MAX_CREDITS_MILLI: u64 = 1_000_000_000;

/// Why an amount is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AmountError {
    /// The error, without the value.
    pub(crate) message: &'static str,
    /// How to write it.
    pub(crate) remedy: String,
}

fn invalid<T>(message: &'static str, remedy: impl Into<String>) -> Result<T, AmountError> {
    Err(AmountError { message, remedy: remedy.into() })
}

/// Parses a duration such as `30s`, `1h30m` or `7d` to milliseconds. Units are `d`, `h`, `m`, `s`, `ms`, in this order.
pub(crate) fn parse_duration_ms(text: &str) -> Result<u64, AmountError> {
    const FORM: &str = "write a number and a unit, such as `30s`, `90m`, `24h` or `7d`";
    if text.starts_with('-') {
        return invalid("a duration cannot be negative", FORM);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return invalid("a duration needs a unit", format!("did you mean `{text}s` or `{text}m`?"));
    }
    let mut total: u64 = 0;
    let mut last_unit = u64::MAX;
    let mut rest = text;
    if rest.is_empty() {
        return invalid("not a duration", FORM);
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return invalid("not a duration", FORM),
        };
        if digits == 0 || unit_ms >= last_unit {
            return invalid("not a duration", FORM);
        }
        last_unit = unit_ms;
        rest = tail;
        total = match number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(unit_ms))
            .and_then(|ms| total.checked_add(ms))
        {
            Some(total) if total <= MAX_DURATION_MS => total,
            _ => return invalid("a duration is at most ten years", "write a shorter one"),
        };
    }
    Ok(total)
}

/// Parses an amount of GPUs such as `8`, `0.5` or `250m` to milli-GPU.
pub(crate) fn parse_gpus_milli(text: &str) -> Result<u64, AmountError> {
    const FORM: &str = "write GPUs like `8`, `0.25` or `250m` (milli-GPU), from 0 to ten million";
    if text.starts_with('-') {
        return invalid("an amount of GPUs cannot be negative", FORM);
    }
    let milli = plain_milli(text).filter(|milli| *milli <= MAX_GPUS_MILLI);
    milli.map_or_else(|| invalid("not an amount of GPUs", FORM), Ok)
}

/// Parses GPU-hours such as `500` or `0.25` to thousandths.
pub(crate) fn parse_gpu_hours_milli(text: &str) -> Result<u64, AmountError> {
    const FORM: &str = "write GPU-hours like `500` or `0.25`, from 0 to one billion, with at most three decimals";
    if text.starts_with('-') {
        return invalid("an amount of GPU-hours cannot be negative", FORM);
    }
    let milli = plain_milli(text).filter(|milli| *milli <= MAX_GPU_HOURS_MILLI && !text.ends_with('m'));
    milli.map_or_else(|| invalid("not an amount of GPU-hours", FORM), Ok)
}

/// Parses a price in credits such as `3` or `0.125` to milli-credits.
pub(crate) fn parse_credits_milli(text: &str) -> Result<u64, AmountError> {
    const FORM: &str = "write credits like `3` or `0.125`, from 0 to one million, with at most three decimals";
    let milli = plain_milli(text).filter(|milli| *milli <= MAX_CREDITS_MILLI && !text.ends_with('m'));
    milli.map_or_else(|| invalid("not a price", FORM), Ok)
}

/// Parses a time, or a date as its first millisecond (UTC), to milliseconds since 1970.
pub(crate) fn parse_start_ms(text: &str) -> Result<u64, AmountError> {
    parse_time_ms(text, 0)
}

/// Parses a time, or a date as its last millisecond (UTC), to milliseconds since 1970.
pub(crate) fn parse_end_ms(text: &str) -> Result<u64, AmountError> {
    parse_time_ms(text, 86_400_000 - 1)
}

fn parse_time_ms(text: &str, offset_in_day_ms: i64) -> Result<u64, AmountError> {
    const FORM: &str = "write an RFC 3339 date or time, such as `2027-01-31` or `2027-01-31T18:00:00Z`";
    let is_date = text.len() == 10;
    let timestamp = if is_date {
        text.parse::<Date>()
            .ok()
            .and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok())
            .and_then(|zoned| zoned.timestamp().checked_add(SignedDuration::from_millis(offset_in_day_ms)).ok())
    } else {
        text.parse::<Timestamp>().ok()
    };
    match timestamp.map(|timestamp| u64::try_from(timestamp.as_millisecond())) {
        Some(Ok(ms)) => Ok(ms),
        Some(Err(_)) => invalid("a date before 1970", FORM),
        None => invalid("not a date", FORM),
    }
}

/// Shows milli-GPU as GPUs: `3`, `0.25`.
#[must_use]
pub fn show_gpus(milli: u64) -> String {
    let (whole, rest) = (milli / 1000, milli % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

/// Shows GPU-time, in thousandths of a GPU × milliseconds, as GPU-hours: `500`, `0.25`. Rounds down to thousandths.
#[must_use]
pub fn show_gpu_hours(time: u128) -> String {
    show_gpus(u64::try_from(time * 1_000 / GPU_HOUR).unwrap_or(u64::MAX))
}

/// Shows milliseconds as a duration that policy can read back: `1d12h`, `1h30m`.
#[must_use]
pub fn show_duration(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut rest = ms;
    let mut shown = String::new();
    for (unit, unit_ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if rest >= unit_ms {
            shown.push_str(&format!("{}{unit}", rest / unit_ms));
            rest %= unit_ms;
        }
    }
    shown
}

/// Shows milliseconds since 1970 as an RFC 3339 time.
#[must_use]
pub fn show_time(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| format!("{ms} ms after 1970"), |timestamp| timestamp.to_string())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_have_a_bound() {
        for (text, ms) in [
            ("30m", 1_800_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
            ("250ms", 250),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for bad in ["", "30", "-5m", "5 m", "m", "5w", "30m1h", "1.5h", "18446744073709551615d", "3661d", "１h"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_duration_ms("30").unwrap_err().remedy, "did you mean `30s` or `30m`?");
    }

    #[test]
    fn gpus_are_exact_thousandths() {
        for (text, milli) in [("8", 8000), (".5", 500), ("0.1", 100), ("250m", 250), ("1.005", 1005), ("0", 0)] {
            assert_eq!(parse_gpus_milli(text), Ok(milli), "{text}");
        }
        for bad in
            ["", "-1", "1e3", "0.0005", "5.", "1,5", "m", "+1", "99999999999999999999", "10000001", "99999999999999m"]
        {
            assert!(parse_gpus_milli(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn gpu_hours_are_exact_thousandths() {
        for (text, milli) in [("500", 500_000), (".5", 500), ("0", 0), ("1000000000", 1_000_000_000_000)] {
            assert_eq!(parse_gpu_hours_milli(text), Ok(milli), "{text}");
        }
        for bad in ["", "-1", "250m", "0.0005", "1000000001", "5h"] {
            assert!(parse_gpu_hours_milli(bad).is_err(), "{bad}");
        }
        assert_eq!(show_gpu_hours(3 * GPU_HOUR / 2), "1.5");
        assert_eq!(show_gpu_hours(GPU_HOUR - 1), "0.999");
        assert_eq!(show_gpu_hours(u128::from(u64::MAX) * 2), "10248191152.06");
    }

    #[test]
    fn a_date_begins_and_ends_with_its_day() {
        assert_eq!(parse_start_ms("1970-01-02"), Ok(86_400_000));
        assert_eq!(parse_end_ms("1970-01-02"), Ok(2 * 86_400_000 - 1));
        assert_eq!(parse_start_ms("1970-01-02T01:00:00+01:00"), Ok(86_400_000));
        for bad in ["", "2026-13-01", "2026-1-1", "tomorrow", "1969-12-31", "2026-01-01T00:00:00"] {
            assert!(parse_start_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts_are_shown_as_people_write_them() {
        assert_eq!(show_gpus(1500), "1.5");
        assert_eq!(show_gpus(8000), "8");
        assert_eq!(show_duration(5_400_000), "1h30m");
        assert_eq!(show_time(86_400_000), "1970-01-02T00:00:00Z");
    }
}
