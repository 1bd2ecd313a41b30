//! The report of a chaos test of brokers.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::broker_injector::Figures;
use crate::history::{Call, Operation, Verdict};

/// Maximum numbers listed in a violation.
const FEW: usize = 8;

/// The result of a run.
#[derive(Debug)]
pub struct BrokersReport {
    /// Seed of the order of faults.
    pub seed: u64,
    pub(super) length: Duration,
    pub(super) figures: Figures,
    pub(super) operations: Vec<Operation>,
    pub(super) verdict: Verdict,
    pub(super) lost: usize,
    pub(super) violations: Vec<String>,
}

impl BrokersReport {
    /// Whether there are no violations.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.verdict.accepted()
    }

    /// All violations, of the group and of the history.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.violations.iter().chain(&self.verdict.violations).cloned().collect()
    }

    /// Number of injected faults.
    #[must_use]
    pub fn faults(&self) -> usize {
        self.figures.values().map(Vec::len).sum()
    }

    /// Number of acknowledged writes.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        let written = |it: &&Operation| matches!(it.what, Call::Submit(_) | Call::Cancel(_)) && it.answer.is_some();
        self.operations.iter().filter(written).count()
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let count = |of: fn(&Operation) -> bool| self.operations.iter().filter(|it| of(it)).count();
        let faults: Map<String, Value> = self
            .figures
            .iter()
            .map(|(kind, took)| {
                let mut ms: Vec<u128> = took.iter().map(Duration::as_millis).collect();
                ms.sort_unstable();
                let figures = json!({
                    "count": took.len(),
                    "recovery_median_ms": ms.get(ms.len().saturating_sub(1) / 2),
                    "recovery_max_ms": ms.last(),
                });
                (kind.name().to_owned(), figures)
            })
            .collect();
        json!({
            "seed": self.seed,
            "seconds": self.length.as_secs(),
            "faults": faults,
            "operations": {
                "submitted": count(|it| matches!(it.what, Call::Submit(_)) && it.answer.is_some()),
                "cancelled": count(|it| matches!(it.what, Call::Cancel(_)) && it.answer.is_some()),
                "read": count(|it| matches!(it.what, Call::Read(..))),
                "listed": count(|it| matches!(it.what, Call::List(_))),
                "unknown": count(|it| it.answer.is_none()),
            },
            "checks": { "requests": self.verdict.objects, "steps": self.verdict.steps },
            "lost": self.lost,
            "history": if self.verdict.accepted() { "accepted" } else { "rejected" },
            "violations": self.violations(),
        })
    }
}

impl fmt::Display for BrokersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = self.json();
        writeln!(f, "{:<28}{:>10}{:>16}{:>12}", "fault", "count", "recovery, ms", "longest")?;
        for (kind, fault) in json["faults"].as_object().into_iter().flatten() {
            let of = |name: &str| fault[name].to_string();
            writeln!(f, "{kind:<28}{:>10}{:>16}{:>12}", of("count"), of("recovery_median_ms"), of("recovery_max_ms"))?;
        }
        for (what, number) in json["operations"].as_object().into_iter().flatten() {
            writeln!(f, "{what:<28}{:>10}", number.to_string())?;
        }
        writeln!(f, "{:<28}{:>10}", "requests checked", self.verdict.objects)?;
        writeln!(f, "{:<28}{:>10}", "lost", self.lost)?;
        writeln!(f, "{:<28}{:>10}", "history", if self.verdict.accepted() { "accepted" } else { "rejected" })?;
        write!(f, "{:<28}{:>10}", "violations", self.violations().len())
    }
}

/// Some numbers, in words.
pub(super) fn few(numbers: &[u64]) -> String {
    let named: Vec<String> = numbers.iter().take(FEW).map(u64::to_string).collect();
    let more = if numbers.len() > FEW { ", …" } else { "" };
    format!("{}{more}", named.join(", "))
}
