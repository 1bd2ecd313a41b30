//! Decimal numbers as scaled integers.

/// Longest number accepted; every sensible amount is shorter.
const MAX_CHARS: usize = 24;

/// Parses `12`, `0.25` or `.5` as a multiple of 10^-`places`; `None` if it is malformed, has more places or overflows.
pub(super) fn parse_scaled(text: &str, places: u32) -> Option<u64> {
    if text.len() > MAX_CHARS {
        return None;
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) || text.ends_with('.') {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let missing = places.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let number = |part: &str| if part.is_empty() { Some(0) } else { part.parse::<u64>().ok() };
    let fraction = number(fraction)?.checked_mul(10_u64.checked_pow(missing)?)?;
    number(whole)?.checked_mul(10_u64.checked_pow(places)?)?.checked_add(fraction)
}

/// A number of thousandths, for people: `3`, `0.25`.
#[must_use]
pub fn format_milli(milli: u64) -> String {
    let (whole, part) = (milli / 1_000, milli % 1_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{}", format!("{part:03}").trim_end_matches('0')) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_read_well() {
        assert_eq!([0, 250, 1_000, 1_500, 3_050].map(format_milli), ["0", "0.25", "1", "1.5", "3.05"]);
    }

    #[test]
    fn reads_exactly_or_not_at_all() {
        for (text, places, value) in [
            ("3", 3, Some(3_000)),
            ("0.25", 3, Some(250)),
            (".5", 3, Some(500)),
            ("1.500000", 3, Some(1_500)),
            ("0.0001", 3, None),
            ("", 3, None),
            (".", 3, None),
            ("1.", 3, None),
            ("-1", 3, None),
            ("+1", 3, None),
            ("1e3", 3, None),
            ("1_000", 0, None),
            ("٣", 0, None),
            ("18446744073709551615", 0, Some(u64::MAX)),
            ("18446744073709551615", 1, None),
            ("18446744073709551616", 0, None),
        ] {
            assert_eq!(parse_scaled(text, places), value, "{text}");
        }
    }
}
