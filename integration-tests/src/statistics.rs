//! Statistics of measurements.

use std::time::Duration;

/// The time that `percent` of 100 took at most, in milliseconds; of sorted times.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, Duration::as_secs_f64) * 1e3
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        Some(upper) if values.len().is_multiple_of(2) => f64::midpoint(values[middle - 1], *upper),
        Some(value) => *value,
        None => 0.0,
    }
}

pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians_of_few_values() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert!((percentile(&times, 99) - 100.0).abs() < 1e-9 && (percentile(&times[..1], 99) - 1.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9 && median(Vec::new()).abs() < 1e-9);
    }
}
