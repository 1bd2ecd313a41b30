//! Kubernetes quantities, such as `1500m`, `2`, `512Gi` and `1e3`, as whole numbers.
//!
//! kube_quantity 0.9 reads the number as floating point, which is inexact and which this crate forbids;
//! k8s_quantity_parser 0.1 needs k8s-openapi 0.14.

/// Billionths per one. Kubernetes keeps no finer amounts.
const NANO: u128 = 1_000_000_000;
/// Billionths per thousandth.
const NANO_PER_MILLI: u128 = 1_000_000;
/// Digits after the point that Kubernetes keeps.
const FRACTION_DIGITS: usize = 9;
/// Length of the longest accepted text; real quantities have fewer than 20 characters.
const MAX_TEXT: usize = 64;

/// The amount in thousandths, rounded up: for requests.
#[must_use]
pub fn milli_ceil(text: &str) -> Option<u64> {
    u64::try_from(nano(text)?.div_ceil(NANO_PER_MILLI)).ok()
}

/// The amount in thousandths, rounded down: for capacity.
#[must_use]
pub fn milli_floor(text: &str) -> Option<u64> {
    u64::try_from(nano(text)? / NANO_PER_MILLI).ok()
}

/// The amount in ones, rounded up: for requests.
#[must_use]
pub fn ones_ceil(text: &str) -> Option<u64> {
    u64::try_from(nano(text)?.div_ceil(NANO)).ok()
}

/// The amount in ones, rounded down: for capacity.
#[must_use]
pub fn ones_floor(text: &str) -> Option<u64> {
    u64::try_from(nano(text)? / NANO).ok()
}

/// Converts an amount that a person wrote, such as `8`, `0.25` or `250m`, to thousandths. `None` for all other notations
/// and for fractions of a thousandth.
#[must_use]
pub fn plain_milli(text: &str) -> Option<u64> {
    let number = text.strip_suffix('m').unwrap_or(text);
    let is_plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !number.ends_with('.');
    let nano = nano(text).filter(|nano| is_plain && nano.is_multiple_of(NANO_PER_MILLI))?;
    u64::try_from(nano / NANO_PER_MILLI).ok()
}

/// The amount in billionths; `None` for negative amounts, too large ones, and text that is no quantity.
#[must_use]
pub fn nano(text: &str) -> Option<u128> {
    let text = text.trim();
    if text.len() > MAX_TEXT {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    scale(digits(number)?, suffix)
}

/// A decimal number without sign, in billionths.
fn digits(number: &str) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Kubernetes also rounds finer digits up.
    let kept: String = fraction.chars().chain(std::iter::repeat('0')).take(FRACTION_DIGITS).collect();
    let finer = fraction.get(FRACTION_DIGITS..).is_some_and(|rest| rest.bytes().any(|digit| digit != b'0'));
    let fraction: u128 = kept.parse().ok()?;
    whole.checked_mul(NANO)?.checked_add(fraction)?.checked_add(u128::from(finer))
}

fn scale(nano: u128, suffix: &str) -> Option<u128> {
    let decimal = |power: u32| 10_u128.checked_pow(power);
    let factor = match suffix {
        "n" => return Some(nano.div_ceil(NANO)),
        "u" => return Some(nano.div_ceil(1_000_000)),
        "m" => return Some(nano.div_ceil(1_000)),
        "" => 1,
        "k" => decimal(3)?,
        "M" => decimal(6)?,
        "G" => decimal(9)?,
        "T" => decimal(12)?,
        "P" => decimal(15)?,
        "E" => decimal(18)?,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        exponent => return scale_exponent(nano, exponent),
    };
    nano.checked_mul(factor)
}

fn scale_exponent(nano: u128, suffix: &str) -> Option<u128> {
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let factor = 10_u128.checked_pow(power.unsigned_abs())?;
    if power < 0 { Some(nano.div_ceil(factor)) } else { nano.checked_mul(factor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kubernetes_writes() {
        for (text, milli) in [
            ("0", 0),
            ("2", 2_000),
            ("1500m", 1_500),
            ("0.5", 500),
            (".5", 500),
            ("1.", 1_000),
            ("100u", 1),
            ("1n", 1),
            ("1e3", 1_000_000),
            ("12E-1", 1_200),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("+3", 3_000),
        ] {
            assert_eq!(milli_ceil(text), Some(milli), "{text}");
        }
        assert_eq!(ones_floor("512Gi"), Some(512 << 30));
        assert_eq!(ones_floor("131923752Ki"), Some(131_923_752 << 10));
    }

    #[test]
    fn capacity_rounds_down_and_requests_round_up() {
        assert_eq!((milli_floor("1999u"), milli_ceil("1999u")), (Some(1), Some(2)));
        assert_eq!((ones_floor("1.5"), ones_ceil("1.5")), (Some(1), Some(2)));
    }

    #[test]
    fn plain_amounts_are_whole_thousandths() {
        for (text, milli) in
            [("8", 8_000), ("0.5", 500), (".5", 500), ("1.500000", 1_500), ("250m", 250), ("1.005", 1_005), ("0", 0)]
        {
            assert_eq!(plain_milli(text), Some(milli), "{text}");
        }
        let most = "18446744073709551.615";
        assert_eq!((plain_milli(most), plain_milli("18446744073709551.616")), (Some(u64::MAX), None));
        for text in [
            "",
            ".",
            "1.",
            "m",
            "-1",
            "+1",
            " 1",
            "1e3",
            "1k",
            "1Ki",
            "1u",
            "0.0005",
            "1.5m",
            "1,5",
            "1_000",
            "٣",
            "１",
            "18446744073709551616",
            "0.0000000001",
        ] {
            assert_eq!(plain_milli(text), None, "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_amount() {
        for text in ["", ".", "-1", "1.2.3", "Gi", "1Zi", "1e", "1e99", "99999999999999999999Ei", "one", "1 Gi"] {
            assert_eq!(milli_ceil(text), None, "{text}");
        }
        assert_eq!(milli_ceil(&"1".repeat(65)), None);
    }
}
