//! CPU, memory and bandwidth, written as in Kubernetes.

use super::decimal::{format_milli, parse_scaled};

const MEMORY_REMEDY: &str = "write memory as 64Gi, 512Mi or 80G";
const CPU_REMEDY: &str = "write CPU as 8, 0.5 or 500m";
const MIB: u64 = 1 << 20;
/// Decimal places of an amount of memory.
const PLACES: u32 = 3;
const SCALE: u64 = 1_000;

/// Parses memory as MiB, rounded up; takes binary units (`Mi`, `Gi`, `Ti`) and decimal ones (`M`, `G`, `T`).
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_memory_mib(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let units = [
        ("Ki", 1 << 10),
        ("Mi", MIB),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let Some((number, unit)) =
        units.iter().find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|rest| (rest, *unit)))
    else {
        return Err(format!("{text:?} has no unit of memory; {MEMORY_REMEDY}"));
    };
    let scaled =
        parse_scaled(number, PLACES).ok_or_else(|| format!("{text:?} is not an amount of memory; {MEMORY_REMEDY}"))?;
    let bytes = u128::from(scaled) * u128::from(unit) / u128::from(SCALE);
    if bytes == 0 {
        return Err(format!("{text:?} is zero; {MEMORY_REMEDY}"));
    }
    // 80G is not a whole number of MiB: round up, so that a lease never has less than requested.
    u64::try_from(bytes.div_ceil(u128::from(MIB))).map_err(|_| format!("{text:?} is too much memory; {MEMORY_REMEDY}"))
}

/// Parses the bandwidth of a network in Gbit/s.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_gbits(text: &str) -> Result<u32, String> {
    let text = text.trim();
    text.parse().map_err(|_| format!("{text:?} is not a whole number of Gbit/s; write it as 200 or 400"))
}

/// Parses CPU as thousandths of a core.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_cpu_milli(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let parsed = match text.strip_suffix('m') {
        Some(milli) => parse_scaled(milli, 0),
        None => parse_scaled(text, 3),
    };
    parsed.ok_or_else(|| format!("{text:?} is not an amount of CPU; {CPU_REMEDY}"))
}

/// Memory in MiB, for people: `64Gi`, `512Mi`; `-` for none.
#[must_use]
pub fn format_memory(mib: u64) -> String {
    match mib {
        0 => "-".to_owned(),
        mib if mib % 1_024 == 0 => format!("{}Gi", mib / 1_024),
        mib => format!("{mib}Mi"),
    }
}

/// CPU in thousandths of a core, for people: `8`, `0.5`; `-` for none.
#[must_use]
pub fn format_cpu(milli: u64) -> String {
    if milli == 0 { "-".to_owned() } else { format_milli(milli) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        assert_eq!([0, 512, 65_536].map(format_memory), ["-", "512Mi", "64Gi"]);
        assert_eq!([0, 500, 8_000].map(format_cpu), ["-", "0.5", "8"]);
    }

    #[test]
    fn bandwidth_is_a_whole_number() {
        assert_eq!(parse_gbits(" 400 "), Ok(400));
        for bad in ["", "-1", "1.5", "400Gb", "many", "99999999999"] {
            assert!(parse_gbits(bad).expect_err(bad).contains("as 200 or 400"), "{bad}");
        }
    }

    #[test]
    fn memory_is_read_in_mib() {
        for (text, mib) in
            [("64Gi", 65_536), ("512Mi", 512), ("1.5Gi", 1_536), ("1Ti", 1 << 20), ("80G", 76_294), ("1Ki", 1)]
        {
            assert_eq!(parse_memory_mib(text), Ok(mib), "{text}");
        }
        for bad in ["64", "0Gi", "-1Gi", "Gi", "1.0001Gi", "99999999999999999999Ti", "1e3Mi", "64 GB"] {
            let error = parse_memory_mib(bad).expect_err(bad);
            assert!(error.contains(bad) && error.contains("64Gi"), "{error}");
        }
    }

    #[test]
    fn cpu_is_read_in_milli() {
        for (text, milli) in [("8", 8_000), ("0.5", 500), ("500m", 500), ("0", 0)] {
            assert_eq!(parse_cpu_milli(text), Ok(milli), "{text}");
        }
        for bad in ["", "x", "-1", "0.0001", "1.5m", "m"] {
            let error = parse_cpu_milli(bad).expect_err(bad);
            assert!(error.contains("500m"), "{error}");
        }
    }
}
