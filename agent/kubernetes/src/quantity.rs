//! Kubernetes quantities, as in "1500m", "2", "512Gi" and "1e3", as whole numbers.

/// Billionths, the finest step that Kubernetes knows.
const NANO: u128 = 1_000_000_000;
/// Digits after the point that Kubernetes keeps.
const FRACTION_DIGITS: usize = 9;
/// Longest text that is looked at; real ones have fewer than 20 characters.
const MAX_TEXT: usize = 64;

/// The amount in thousandths, rounded up: for requests.
pub fn milli_ceil(text: &str) -> Option<u64> {
    u64::try_from(nano(text)?.div_ceil(NANO / 1_000)).ok()
}

/// The amount in thousandths, rounded down: for capacity.
pub fn milli_floor(text: &str) -> Option<u64> {
    u64::try_from(nano(text)? / (NANO / 1_000)).ok()
}

/// The amount in ones, rounded up: for requests.
pub fn ones_ceil(text: &str) -> Option<u64> {
    u64::try_from(nano(text)?.div_ceil(NANO)).ok()
}

/// The amount in ones, rounded down: for capacity.
pub fn ones_floor(text: &str) -> Option<u64> {
    u64::try_from(nano(text)? / NANO).ok()
}

/// The amount in billionths; `None` for what is negative, too large, or no quantity.
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

/// A plain decimal number in billionths.
fn digits(number: &str) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Finer digits than Kubernetes keeps round up, as it does.
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
    fn what_there_is_rounds_down_and_what_is_asked_for_rounds_up() {
        assert_eq!((milli_floor("1999u"), milli_ceil("1999u")), (Some(1), Some(2)));
        assert_eq!((ones_floor("1.5"), ones_ceil("1.5")), (Some(1), Some(2)));
    }

    #[test]
    fn nonsense_is_no_amount() {
        for text in ["", ".", "-1", "1.2.3", "Gi", "1Zi", "1e", "1e99", "99999999999999999999Ei", "one", "1 Gi"] {
            assert_eq!(milli_ceil(text), None, "{text}");
        }
        assert_eq!(milli_ceil(&"1".repeat(65)), None);
    }
}
