//! The report of a chaos test of a federation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::federation_faults::FederationFaultKind;
use super::ledger::{LeaseFacts, Ledger};

/// Statistics of the faults.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Number of injected faults.
    pub(super) count: BTreeMap<FederationFaultKind, u64>,
    /// Recovery times.
    pub(super) recovered: BTreeMap<FederationFaultKind, Vec<Duration>>,
    /// Peak resident memory by kind of process, in bytes.
    pub(super) resident: BTreeMap<&'static str, u64>,
}

/// The result of a run.
#[derive(Debug)]
pub struct ChaosReport {
    /// Seed of the faults.
    pub seed: u64,
    /// All violations; empty in a good run.
    pub violations: Vec<String>,
    /// The statistics as JSON.
    pub figures: Value,
}

impl ChaosReport {
    pub(super) fn new(
        seed: u64,
        length: Duration,
        ledger: &Ledger,
        faults: &Faults,
        accepted: usize,
        repeated: u64,
    ) -> Self {
        let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
        for reason in ledger.leases().filter_map(|lease| lease.end_reason.as_deref()) {
            *ended.entry(reason).or_default() += 1;
        }
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let of_kind = |(kind, count): (&FederationFaultKind, &u64)| {
            let mut times: Vec<u64> =
                faults.recovered.get(kind).into_iter().flatten().map(|time| milliseconds(*time)).collect();
            times.sort_unstable();
            let middle = times.get(times.len().saturating_sub(1) / 2);
            (kind.name(), json!({ "count": count, "recovery_median_ms": middle, "recovery_max_ms": times.last() }))
        };
        let granted: BTreeMap<&str, Value> = ledger
            .most_granted()
            .into_iter()
            .map(|(donor, (most, has))| (donor, json!({ "most_granted_gpus": most, "gpus": has })))
            .collect();
        let longest: BTreeMap<&str, u64> =
            ledger.longest_overcommitted().into_iter().map(|(donor, time)| (donor, milliseconds(time))).collect();
        let figures = json!({
            "seed": seed,
            "seconds": length.as_secs(),
            "requests_accepted": accepted,
            "calls_repeated": repeated,
            "leases_granted": ledger.leases().count(),
            "leases_active": ledger.leases().filter(|lease: &&LeaseFacts| lease.was_active).count(),
            "leases_ended": ended,
            "donors": granted,
            "longest_overcommitted_ms": longest,
            "faults": faults.count.iter().map(of_kind).collect::<BTreeMap<_, _>>(),
            "most_resident_mib": faults.resident.iter().map(|(what, bytes)| (what, bytes >> 20)).collect::<BTreeMap<_, _>>(),
            "violations": ledger.violations(),
        });
        Self { seed, violations: ledger.violations().iter().cloned().collect(), figures }
    }
}

impl std::fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = &self.figures;
        for name in ["seed", "seconds", "requests_accepted", "calls_repeated", "leases_granted", "leases_active"] {
            writeln!(f, "{:<28}{:>10}", name.replace('_', " "), figures[name].to_string())?;
        }
        for (reason, count) in figures["leases_ended"].as_object().into_iter().flatten() {
            writeln!(f, "{:<28}{:>10}", format!("  ended: {reason}"), count.to_string())?;
        }
        writeln!(f, "{:<28}{:>10}{:>16}{:>12}", "fault", "count", "recovery, ms", "longest")?;
        let time = |value: &Value| if value.is_null() { "-".to_owned() } else { value.to_string() };
        for (kind, fault) in figures["faults"].as_object().into_iter().flatten() {
            let (median, longest) = (time(&fault["recovery_median_ms"]), time(&fault["recovery_max_ms"]));
            writeln!(f, "{kind:<28}{:>10}{median:>16}{longest:>12}", fault["count"].to_string())?;
        }
        for (donor, longest) in figures["longest_overcommitted_ms"].as_object().into_iter().flatten() {
            writeln!(f, "{:<28}{:>10}", format!("{donor}, over-committed ms"), longest.to_string())?;
        }
        for (what, mib) in figures["most_resident_mib"].as_object().into_iter().flatten() {
            writeln!(f, "{:<28}{:>10}", format!("{what}, most MiB"), mib.to_string())?;
        }
        write!(f, "{:<28}{:>10}", "violations", self.violations.len())
    }
}
