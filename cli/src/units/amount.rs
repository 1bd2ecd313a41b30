//! CPU, memory and bandwidth, written as in Kubernetes.

use comity_policy::quantity::{ones_ceil, plain_milli};

use super::format_milli;

const MEMORY_REMEDY: &str = "write memory as 64Gi, 512Mi or 80G";
const CPU_REMEDY: &str = "write CPU as 8, 0.5 or 500m";
const MEMORY_UNITS: [&str; 8] = ["Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"];
pub(super) const MIB: u64 = 1 << 20;

/// Parses memory as MiB, rounded up; takes binary units (`Mi`, `Gi`, `Ti`) and decimal ones (`M`, `G`, `T`).
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_memory_mib(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if !MEMORY_UNITS.iter().any(|unit| text.ends_with(unit)) {
        return Err(format!("{text:?} has no unit of memory; {MEMORY_REMEDY}"));
    }
    match ones_ceil(text) {
        None => Err(format!("{text:?} is not an amount of memory; {MEMORY_REMEDY}")),
        Some(0) => Err(format!("{text:?} is zero; {MEMORY_REMEDY}")),
        // 80G is not a whole number of MiB: round up, so that a lease never has less than requested.
        Some(bytes) => Ok(bytes.div_ceil(MIB)),
    }
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
    plain_milli(text).ok_or_else(|| format!("{text:?} is not an amount of CPU; {CPU_REMEDY}"))
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
        assert_eq!([0, 250, 1_000, 1_500, 3_050].map(format_milli), ["0", "0.25", "1", "1.5", "3.05"]);
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
        for (text, mib) in [
            ("64Gi", 65_536),
            ("512Mi", 512),
            ("1.5Gi", 1_536),
            ("1Ti", 1 << 20),
            ("80G", 76_294),
            ("1Ki", 1),
            ("1.0001Gi", 1_025),
        ] {
            assert_eq!(parse_memory_mib(text), Ok(mib), "{text}");
        }
        for bad in ["64", "0Gi", "-1Gi", "Gi", "1000000000000Ti", "99999999999999999999Ti", "1e3Mi", "64 GB"] {
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
