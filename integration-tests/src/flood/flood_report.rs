//! The report of the floods.

use std::fmt;

use serde_json::{Value, json};

use super::flood_kind::FloodKind;
use super::flooder::FloodCounts;
use super::submitter::Submitted;
use crate::statistics::rounded;

/// One flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloodRow {
    pub(crate) kind: FloodKind,
    pub(crate) alone: Submitted,
    pub(crate) flooded: Submitted,
    pub(crate) counts: FloodCounts,
    pub(crate) seconds: f64,
}

impl FloodRow {
    /// How many times as long the slowest hundredth of submissions takes during the flood.
    fn p99_ratio(&self) -> f64 {
        self.flooded.p99_ms / self.alone.p99_ms.max(f64::MIN_POSITIVE)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }
}

impl fmt::Display for FloodRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |it: &Submitted| format!("{:.1} / {:.1}", it.p50_ms, it.p99_ms);
        write!(
            f,
            "{:<20}{:>20}{:>20}{:>10.2}{:>8}{:>14.0}{:>14.0}",
            self.kind,
            times(&self.alone),
            times(&self.flooded),
            self.p99_ratio(),
            self.flooded.failed,
            self.per_second(self.counts.answered),
            self.per_second(self.counts.refused),
        )
    }
}

/// All floods.
#[derive(Debug, Default)]
pub struct FloodReport {
    pub(crate) rows: Vec<FloodRow>,
}

impl FloodReport {
    /// Floods whose ratio is above a limit.
    #[must_use]
    pub fn over_limit(&self, limit: f64) -> Vec<FloodKind> {
        self.rows.iter().filter(|row| row.p99_ratio() > limit).map(|row| row.kind).collect()
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |row: &FloodRow| {
            json!({
                "flood": row.kind.to_string(),
                "alone_p50_ms": rounded(row.alone.p50_ms, 3),
                "alone_p99_ms": rounded(row.alone.p99_ms, 3),
                "flooded_p50_ms": rounded(row.flooded.p50_ms, 3),
                "flooded_p99_ms": rounded(row.flooded.p99_ms, 3),
                "p99_ratio": rounded(row.p99_ratio(), 3),
                "submitted": row.flooded.count,
                "failed": row.flooded.failed,
                "answered_per_second": rounded(row.per_second(row.counts.answered), 1),
                "refused_per_second": rounded(row.per_second(row.counts.refused), 1),
            })
        };
        json!({ "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

impl fmt::Display for FloodReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<20}{:>20}{:>20}{:>10}{:>8}{:>14}{:>14}",
            "flood", "alone p50/p99, ms", "flooded p50/p99, ms", "p99 ratio", "failed", "answered/s", "refused/s"
        )?;
        self.rows.iter().try_for_each(|row| write!(f, "\n{row}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_compares_the_slowest_submissions() {
        let submitted = |p99_ms| Submitted { count: 100, failed: 1, p50_ms: 1.0, p99_ms };
        let counts = FloodCounts { answered: 50, refused: 10 };
        let row =
            FloodRow { kind: FloodKind::Quotes, alone: submitted(4.0), flooded: submitted(6.0), counts, seconds: 5.0 };
        let report = FloodReport { rows: vec![row] };
        assert_eq!(report.over_limit(1.5), []);
        assert_eq!(report.over_limit(1.49), [FloodKind::Quotes]);
        let json = report.json();
        assert_eq!(
            (&json["rows"][0]["p99_ratio"], &json["rows"][0]["answered_per_second"]),
            (&json!(1.5), &json!(10.0))
        );
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), lines[1].len());
        assert!(lines[1].starts_with("quotes") && lines[1].contains("1.50"), "{text}");
    }
}
