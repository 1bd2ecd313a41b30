//! What happened when.

use std::io::Write as _;
use std::time::Instant;

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Format;

/// The steps of the story, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// Three brokers have a leader and the policy is in force.
    BrokersReady,
    /// Every cluster joined with its token and advertises its devices.
    ClustersJoined,
    /// The tenant submitted its request.
    RequestSubmitted,
    /// A donor was matched.
    Placed,
    /// The clusters shook hands and the origin reached the donor's API.
    Connected,
    /// The tenant used the lease through the tunnel.
    Used,
    /// Both sides are clean and the token is refused.
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

/// A step that was done.
#[derive(Clone, Debug, Serialize)]
struct Done {
    name: Step,
    /// Since the step before, in milliseconds.
    ms: u64,
}

/// What `--once -o json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    ok: bool,
    total_ms: u64,
    steps: &'a [Done],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Tells people each step as it is done, and keeps the times for scripts.
#[derive(Debug)]
pub(super) struct Timeline {
    format: Format,
    began: Instant,
    last_ms: u64,
    steps: Vec<Done>,
}

impl Timeline {
    /// Begins now.
    pub(super) fn new(format: Format) -> Self {
        Self { format, began: Instant::now(), last_ms: 0, steps: Vec::new() }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A step is done; `detail` says for people what that means.
    pub(super) fn done(&mut self, step: Step, detail: &str) {
        let now = self.elapsed_ms();
        let ms = now - self.last_ms;
        self.last_ms = now;
        self.steps.push(Done { name: step, ms });
        self.say(&format!("{ms:>6} ms  {:<18} {detail}", step.as_str()));
    }

    /// Something to know, between the steps.
    pub(super) fn note(&self, text: &str) {
        self.say(&format!("           {text}"));
    }

    /// People read standard output; for scripts it holds one object only, so that this goes nowhere.
    pub(super) fn say(&self, line: &str) {
        if self.format == Format::Table {
            // Whoever closed the pipe does not want to read on; the story goes on all the same.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    /// How answers look.
    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// One object for scripts.
    pub(super) fn outcome(&self, failure: Option<&Failure>) -> Result<String, Failure> {
        let error = failure.map(|failure| failure.reason.clone());
        let outcome = Outcome { ok: failure.is_none(), total_ms: self.elapsed_ms(), steps: &self.steps, error };
        let failed = |error: &dyn std::fmt::Display| Failure::refused("internal", error.to_string());
        match self.format {
            Format::Yaml => serde_saphyr::to_string(&outcome).map_err(|error| failed(&error)),
            Format::Json | Format::Table => {
                serde_json::to_string(&outcome).map(|json| json + "\n").map_err(|error| failed(&error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_one_object() {
        let mut timeline = Timeline::new(Format::Json);
        timeline.done(Step::BrokersReady, "");
        timeline.done(Step::ClustersJoined, "");
        let value: serde_json::Value = serde_json::from_str(&timeline.outcome(None).expect("made")).expect("an object");
        assert_eq!(value["ok"], true);
        assert!(value["total_ms"].is_u64() && value.get("error").is_none());
        assert_eq!(value["steps"][1]["name"], "clusters-joined");
        assert!(value["steps"][1]["ms"].is_u64());
        let failed = timeline.outcome(Some(&Failure::unavailable("no leader"))).expect("made");
        assert!(failed.contains("\"ok\":false") && failed.contains("\"error\":\"no leader\""), "{failed}");
    }
}
