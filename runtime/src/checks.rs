//! Results of checks that `comity-agent join`, `comity-agent doctor` and `comity doctor` make, each with a remedy.

use comity_types::redact_secrets;
use serde::Serialize;

/// Indentation of a remedy: below the detail of its check.
const REMEDY: &str = "remedy: ";

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Good.
    Ok,
    /// Was not made.
    Skipped,
    /// Works, but not in every case.
    Warning,
    /// Keeps something from working.
    Failed,
}

impl Outcome {
    /// The word for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// One check with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Subject of the check, as in "inventory".
    pub name: String,
    /// Result.
    pub result: Outcome,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: String,
}

impl Check {
    /// Details and remedies quote what somebody typed.
    fn new(name: &str, result: Outcome, detail: String, remedy: String) -> Self {
        Self { name: name.to_owned(), result, detail: redact_secrets(&detail), remedy: redact_secrets(&remedy) }
    }

    /// A check that passed.
    #[must_use]
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Ok, detail.into(), String::new())
    }

    /// A check that was not made, and why.
    #[must_use]
    pub fn skipped(name: &str, why: impl Into<String>) -> Self {
        Self::new(name, Outcome::Skipped, why.into(), String::new())
    }

    /// A check with a warning.
    #[must_use]
    pub fn warning(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Outcome::Warning, detail.into(), remedy.into())
    }

    /// A check that failed.
    #[must_use]
    pub fn failed(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Outcome::Failed, detail.into(), remedy.into())
    }
}

/// Checks in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CheckList {
    /// The checks.
    pub checks: Vec<Check>,
}

impl CheckList {
    /// Adds a check.
    pub fn push(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Whether a check failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.result == Outcome::Failed)
    }

    /// Number of checks with this result.
    #[must_use]
    pub fn count(&self, result: Outcome) -> usize {
        self.checks.iter().filter(|check| check.result == result).count()
    }

    /// One line for each check, its remedy below it.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
        let result_width = Outcome::Skipped.as_str().len();
        let mut text = String::new();
        for Check { name, result, detail, remedy } in &self.checks {
            let margin = " ".repeat(result_width + width + 4);
            let result = result.as_str();
            let line =
                format!("{result:<result_width$}  {name:<width$}  {}", detail.replace('\n', &format!("\n{margin}")));
            text.push_str(line.trim_end());
            text.push('\n');
            if !remedy.is_empty() {
                text.push_str(&format!("{margin}{REMEDY}{remedy}\n"));
            }
        }
        text
    }
}

impl Extend<Check> for CheckList {
    fn extend<T: IntoIterator<Item = Check>>(&mut self, checks: T) {
        self.checks.extend(checks);
    }
}

/// The check of a clock that is `ahead_ms` ahead of log time, or behind if negative.
///
/// Certificates are valid from an hour before they are issued, so a clock further behind sees them as not valid yet.
#[must_use]
pub fn clock_check(ahead_ms: i64) -> Check {
    const WARNING_MS: u64 = 1_000;
    const LIMIT_MS: u64 = 3_600_000;
    let remedy = "set this host's clock, preferably with NTP (chronyc tracking, timedatectl timesync-status)";
    let off = ahead_ms.unsigned_abs();
    let direction = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let detail = format!("this host's clock is {}.{:03} s {direction} the brokers' time", off / 1_000, off % 1_000);
    if off <= WARNING_MS {
        return Check::ok("clock", detail);
    }
    if off <= LIMIT_MS {
        return Check::warning("clock", detail, remedy);
    }
    Check::failed("clock", format!("{detail}; certificates allow one hour"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_line_for_each_check_and_its_remedy_below() {
        let mut list = CheckList::default();
        list.push(Check::ok("clock", "0.010 s ahead"));
        list.push(Check::warning("udp", "nothing arrived", "open the port"));
        assert!(!list.has_failed());
        list.push(Check::failed("inventory", "a\nb", "write it"));
        assert!(list.has_failed());
        assert_eq!(list.count(Outcome::Warning), 1);
        let margin = " ".repeat(20);
        assert_eq!(
            list.text(),
            format!(
                "ok       clock      0.010 s ahead\nwarning  udp        nothing arrived\n{margin}remedy: open the port\n\
                 failed   inventory  a\n{margin}b\n{margin}remedy: write it\n"
            )
        );
        let json = serde_json::to_value(&list).expect("strings serialise");
        assert_eq!((json[1]["result"].as_str(), json[1]["remedy"].as_str()), (Some("warning"), Some("open the port")));
    }

    #[test]
    fn a_clock_may_differ_by_a_second_and_must_not_by_an_hour() {
        for (ahead_ms, result) in [
            (0, Outcome::Ok),
            (-1_000, Outcome::Ok),
            (1_001, Outcome::Warning),
            (-3_600_000, Outcome::Warning),
            (3_600_001, Outcome::Failed),
            (i64::MIN, Outcome::Failed),
        ] {
            assert_eq!(clock_check(ahead_ms).result, result, "{ahead_ms}");
        }
        assert!(clock_check(-61_500).detail.contains("61.500 s behind"));
    }
}
