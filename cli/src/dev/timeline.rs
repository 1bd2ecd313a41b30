//! Records the steps of the demonstration and their times.

use std::time::Instant;

use comity_types::printable;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Format, json_line, write_stdout, yaml};

/// The steps of the demonstration, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// The brokers have a leader and the policy is in force.
    BrokersReady,
    /// Every cluster has joined and has an offer.
    ClustersJoined,
    /// The tenant submitted its request.
    RequestSubmitted,
    /// The scheduler placed the request on a donor.
    Placed,
    /// The handshake is complete and the origin reached the donor's API.
    Connected,
    /// The tenant used the lease through the tunnel.
    Used,
    /// Both sides removed the lease and the donor refuses its token.
    Released,
}

impl Step {
    const fn as_str(self) -> &'static str {
        match self {
            Self::BrokersReady => "brokers-ready",
            Self::ClustersJoined => "clusters-joined",
            Self::RequestSubmitted => "request-submitted",
            Self::Placed => "placed",
            Self::Connected => "connected",
            Self::Used => "used",
            Self::Released => "released",
        }
    }
}

/// A completed step.
#[derive(Clone, Debug, Serialize)]
struct CompletedStep {
    name: Step,
    /// Milliseconds since the previous step.
    ms: u64,
}

/// The answer of `--once -o json`.
#[derive(Serialize)]
struct Outcome<'a> {
    ok: bool,
    total_ms: u64,
    steps: &'a [CompletedStep],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints each completed step for people, and keeps the times for scripts.
#[derive(Debug)]
pub(super) struct Timeline {
    format: Format,
    began: Instant,
    last_ms: u64,
    steps: Vec<CompletedStep>,
}

impl Timeline {
    /// A timeline that begins now.
    pub(super) fn new(format: Format) -> Self {
        Self { format, began: Instant::now(), last_ms: 0, steps: Vec::new() }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records a completed step, with a detail for people.
    pub(super) fn complete(&mut self, step: Step, detail: &str) {
        let now = self.elapsed_ms();
        let ms = now - self.last_ms;
        self.last_ms = now;
        self.steps.push(CompletedStep { name: step, ms });
        self.print(&format!("{ms:>6} ms  {:<18} {detail}", step.as_str()));
    }

    /// Prints a note between two steps, for people.
    pub(super) fn note(&self, text: &str) {
        self.print(&format!("           {text}"));
    }

    /// Prints a line for people; nothing for scripts, whose standard output is one object.
    pub(super) fn print(&self, line: &str) {
        if !self.format.is_for_scripts() {
            // Ignore a closed pipe: the demonstration continues.
            let _ = write_stdout(&format!("{}\n", printable(line)));
        }
    }

    /// Output format.
    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// The steps and any failure as one object for scripts.
    pub(super) fn outcome(&self, failure: Option<&Failure>) -> Result<String, Failure> {
        let error = failure.map(|failure| failure.reason.clone());
        let outcome = Outcome { ok: failure.is_none(), total_ms: self.elapsed_ms(), steps: &self.steps, error };
        match self.format {
            Format::Yaml => yaml(&outcome),
            Format::Json | Format::Table | Format::Markdown => json_line(&outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_one_object() {
        let mut timeline = Timeline::new(Format::Json);
        timeline.complete(Step::BrokersReady, "");
        timeline.complete(Step::ClustersJoined, "");
        let value: serde_json::Value = serde_json::from_str(&timeline.outcome(None).expect("made")).expect("an object");
        assert_eq!(value["ok"], true);
        assert!(value["total_ms"].is_u64() && value.get("error").is_none());
        assert_eq!(value["steps"][1]["name"], "clusters-joined");
        assert!(value["steps"][1]["ms"].is_u64());
        let failed = timeline.outcome(Some(&Failure::unavailable("no leader"))).expect("made");
        assert!(failed.contains("\"ok\":false") && failed.contains("\"error\":\"no leader\""), "{failed}");
    }
}
