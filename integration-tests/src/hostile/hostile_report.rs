//! The report of a run against a hostile broker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::attack_kind::AttackKind;
use super::broker_core::Refused;

/// The result of a run.
#[derive(Debug)]
pub struct HostileReport {
    /// Seed of the attacks.
    pub seed: u64,
    /// All violations; empty in a good run.
    pub violations: Vec<String>,
    /// Duration of the run.
    pub(super) length: Duration,
    /// Number of attacks by kind.
    pub(super) attacks: BTreeMap<AttackKind, u64>,
    /// Refusals of the agents by code.
    pub(super) refusals: BTreeMap<String, u64>,
    /// Renewals of certificates that the agents asked for.
    pub(super) renewals: u64,
    /// Handshakes that took too long, so that the broker began the next epoch.
    pub(super) late_handshakes: u64,
    /// Checks of the ledger, tokens that the broker was searched for, and bytes that it received.
    pub(super) checks: u64,
    pub(super) tokens: usize,
    pub(super) received_bytes: u64,
}

impl HostileReport {
    /// Refusals by code.
    pub(super) fn count(refused: &[Refused]) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for refused in refused {
            *counts.entry(refused.code.clone()).or_default() += 1;
        }
        counts
    }

    /// The statistics as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "seed": self.seed,
            "seconds": self.length.as_secs(),
            "attacks": self.attacks.iter().map(|(kind, count)| (kind.name(), *count)).collect::<BTreeMap<_, _>>(),
            "refusals": self.refusals,
            "renewals": self.renewals,
            "late_handshakes": self.late_handshakes,
            "checks": self.checks,
            "tokens": self.tokens,
            "received_bytes": self.received_bytes,
            "violations": self.violations,
        })
    }
}

impl fmt::Display for HostileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: u64| writeln!(f, "{name:<34}{value:>12}");
        line("seed", self.seed)?;
        line("seconds", self.length.as_secs())?;
        line("attacks", self.attacks.values().sum())?;
        for (kind, count) in &self.attacks {
            line(&format!("  {}", kind.name()), *count)?;
        }
        line("refusals of the agents", self.refusals.values().sum())?;
        for (code, count) in &self.refusals {
            line(&format!("  {code}"), *count)?;
        }
        line("renewals of certificates", self.renewals)?;
        line("handshakes that took too long", self.late_handshakes)?;
        line("checks of grants and credentials", self.checks)?;
        line("tokens searched for", self.tokens as u64)?;
        line("bytes on the broker's disk", self.received_bytes)?;
        write!(f, "{:<34}{:>12}", "violations", self.violations.len())
    }
}
