//! The report of failovers.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::statistics::{median, percentile, rounded};

/// The results of one store.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Time from each kill to the next acknowledgement.
    pub(super) took: Vec<Duration>,
    /// Writes that were acknowledged.
    pub(super) acknowledged: usize,
    /// Acknowledged writes that some member lacks at the end.
    pub(super) lost: usize,
}

impl Outcome {
    fn median_ms(&self) -> f64 {
        median(self.took.iter().map(|took| took.as_secs_f64() * 1e3).collect())
    }

    fn p99_ms(&self) -> f64 {
        let mut sorted = self.took.clone();
        sorted.sort_unstable();
        percentile(&sorted, 99)
    }

    fn json(&self) -> Value {
        json!({
            "median_ms": rounded(self.median_ms(), 1),
            "p99_ms": rounded(self.p99_ms(), 1),
            "lost": self.lost,
        })
    }
}

/// The results of both stores.
#[derive(Debug)]
pub struct FailoverReport {
    pub(super) kills: u32,
    pub(super) comity: Outcome,
    pub(super) etcd: Outcome,
}

impl FailoverReport {
    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "kills": self.kills, "comity": self.comity.json(), "etcd": self.etcd.json() })
    }

    /// Acknowledged writes of Comity that some member lacks at the end.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.comity.lost
    }
}

impl fmt::Display for FailoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10}{:>8}{:>14}{:>14}{:>14}{:>8}", "", "kills", "median, ms", "p99, ms", "acknowledged", "lost")?;
        for (name, outcome) in [("comity", &self.comity), ("etcd", &self.etcd)] {
            let (median, p99) = (outcome.median_ms(), outcome.p99_ms());
            let Outcome { acknowledged, lost, .. } = outcome;
            write!(f, "\n{name:<10}{:>8}{median:>14.0}{p99:>14.0}{acknowledged:>14}{lost:>8}", self.kills)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_thirty_is_the_99th_percentile() {
        let took = (1..=30).map(|number| Duration::from_millis(number * 10)).collect();
        let outcome = Outcome { took, acknowledged: 7, lost: 0 };
        let other = Outcome { took: vec![Duration::from_millis(5)], acknowledged: 1, lost: 2 };
        let json = FailoverReport { kills: 30, comity: outcome, etcd: other }.json();
        assert_eq!(json["comity"]["median_ms"], 155.0);
        assert_eq!(json["comity"]["p99_ms"], 300.0);
        assert_eq!((json["kills"].as_u64(), json["etcd"]["lost"].as_u64()), (Some(30), Some(2)));
    }
}
