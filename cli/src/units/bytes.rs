//! Amounts of bytes for people.

use super::amount::{MIB, parse_memory_mib};

/// Parses an amount of bytes, rounded up to whole MiB: binary units (`Mi`, `Gi`) and decimal ones (`M`, `G`).
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_memory_mib(text).map(|mib| mib.saturating_mul(MIB))
}

/// `512 B`, `4.9 KiB`, `1.5 GiB`: one decimal, rounded to the nearest.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1_024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    // In tenths of the unit.
    let tenths = |unit: u32| {
        let one = 1_u128 << (10 * (unit + 1));
        (u128::from(bytes) * 10 + one / 2) / one
    };
    while tenths(unit) >= 10_240 && (unit as usize) + 1 < UNITS.len() {
        unit += 1;
    }
    let (tenths, name) = (tenths(unit), UNITS[unit as usize]);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_a_unit_and_one_decimal() {
        let shown = [0, 1_023, 1_024, 5_000, 1_048_575, 1 << 20, 3 << 29, u64::MAX].map(format_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "4.9 KiB", "1.0 MiB", "1.0 MiB", "1.5 GiB", "16777216.0 TiB"]);
    }
}
