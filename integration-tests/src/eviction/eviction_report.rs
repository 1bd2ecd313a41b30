//! The report of the evictions.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::effect::Effect;
use super::eviction_case::EvictionCase;
use crate::statistics::{median, percentile, rounded};

/// Times of all runs.
#[derive(Debug, Default)]
pub struct EvictionReport {
    /// Cases that could not be measured, with the reason.
    pub failures: Vec<String>,
    times: BTreeMap<(EvictionCase, Effect), Vec<Duration>>,
}

/// Statistics of one effect in one case.
struct EffectFigures {
    runs: usize,
    median_ms: f64,
    p95_ms: f64,
    max_ms: f64,
    over_limit: usize,
}

impl EffectFigures {
    fn of(effect: Effect, times: &[Duration]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        Self {
            runs: sorted.len(),
            median_ms: median(sorted.iter().map(|took| took.as_secs_f64() * 1e3).collect()),
            p95_ms: percentile(&sorted, 95),
            max_ms: percentile(&sorted, 100),
            over_limit: sorted.iter().filter(|took| **took > effect.limit()).count(),
        }
    }
}

impl EvictionReport {
    pub(super) fn add(&mut self, case: EvictionCase, measured: Vec<(Effect, Duration)>) {
        for (effect, took) in measured {
            self.times.entry((case, effect)).or_default().push(took);
        }
    }

    fn rows(&self) -> impl Iterator<Item = (EvictionCase, Effect, EffectFigures)> {
        self.times.iter().map(|((case, effect), times)| (*case, *effect, EffectFigures::of(*effect, times)))
    }

    /// Times over their limits.
    #[must_use]
    pub fn over_limit(&self) -> usize {
        self.rows().map(|(_, _, figures)| figures.over_limit).sum()
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |(case, effect, figures): (EvictionCase, Effect, EffectFigures)| {
            json!({
                "case": case.to_string(),
                "effect": effect.to_string(),
                "runs": figures.runs,
                "median_ms": rounded(figures.median_ms, 0),
                "p95_ms": rounded(figures.p95_ms, 0),
                "max_ms": rounded(figures.max_ms, 0),
                "limit_ms": effect.limit().as_millis(),
                "over_limit": figures.over_limit,
            })
        };
        json!({ "rows": self.rows().map(row).collect::<Vec<_>>(), "failures": self.failures })
    }
}

impl fmt::Display for EvictionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<24}{:<12}{:>6}{:>12}{:>10}{:>10}{:>10}{:>12}",
            "case", "effect", "runs", "median, s", "p95, s", "max, s", "limit, s", "over limit"
        )?;
        for (case, effect, figures) in self.rows() {
            let EffectFigures { runs, median_ms, p95_ms, max_ms, over_limit } = figures;
            let [median, p95, max] = [median_ms, p95_ms, max_ms].map(|time| time / 1e3);
            let limit = effect.limit().as_secs();
            write!(
                f,
                "\n{case:<24}{effect:<12}{runs:>6}{median:>12.2}{p95:>10.2}{max:>10.2}{limit:>10}{over_limit:>12}"
            )?;
        }
        self.failures.iter().try_for_each(|failure| write!(f, "\nnot measured: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_over_its_limit_counts() {
        let mut report = EvictionReport::default();
        let second = Duration::from_secs;
        for took in [1, 2, 6] {
            report.add(
                EvictionCase::OriginEvicted,
                vec![(Effect::Streams, second(took)), (Effect::Tunnel, second(took))],
            );
        }
        // Six seconds are too long for a stream, and not for a tunnel.
        assert_eq!(report.over_limit(), 1);
        let json = report.json();
        assert_eq!(json["rows"][0]["effect"], "streams");
        assert_eq!((&json["rows"][0]["median_ms"], &json["rows"][0]["p95_ms"]), (&json!(2_000.0), &json!(6_000.0)));
        assert_eq!((&json["rows"][0]["over_limit"], &json["rows"][1]["over_limit"]), (&json!(1), &json!(0)));
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert!(lines[1].starts_with("origin-evicted") && lines[1].contains("6.00"), "{text}");
    }
}
