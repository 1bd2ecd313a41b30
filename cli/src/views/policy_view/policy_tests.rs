//! Results of the tests beside a policy.

use comity_policy_test::{Outcome, Verdict};
use serde::Serialize;

use super::{PolicyProblem, problems_text};
use crate::output::{Answer, Sheet};

/// Results of the tests beside a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTested {
    /// Whether all scenarios that ran hold.
    pub ok: bool,
    /// Problems of the bundle or of the test files; with any, nothing ran.
    pub problems: Vec<PolicyProblem>,
    /// The scenarios that ran, by file and line.
    pub scenarios: Vec<ScenarioResult>,
    /// Number of scenarios that `--run` left out.
    pub left_out: usize,
}

/// The result of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioResult {
    /// Path of its file within the directory.
    pub file: String,
    /// Line of its name.
    pub line: u32,
    /// Its name.
    pub name: String,
    /// `passed`, `failed`, or `impossible` if what it says is given cannot be.
    pub result: &'static str,
    /// What differs, if it failed.
    pub differences: Vec<ExpectedDifference>,
    /// What happens, or why what is given cannot be; empty if it passed.
    pub message: String,
    /// All reasons against the request, if it failed.
    pub reasons: Vec<String>,
}

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedDifference {
    /// The field below `expect`.
    pub field: String,
    /// What the scenario expects.
    pub expected: String,
    /// What happens.
    pub actual: String,
}

impl PolicyTested {
    /// Problems that kept all scenarios from running.
    #[must_use]
    pub fn unusable(problems: Vec<PolicyProblem>) -> Self {
        Self { ok: false, problems, scenarios: Vec::new(), left_out: 0 }
    }

    /// The outcomes of the scenarios that ran.
    #[must_use]
    pub fn new(outcomes: Vec<Outcome>, left_out: usize) -> Self {
        let ok = outcomes.iter().all(Outcome::passed);
        let scenarios = outcomes.into_iter().map(ScenarioResult::from).collect();
        Self { ok, problems: Vec::new(), scenarios, left_out }
    }

    /// Number of scenarios that do not hold.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.scenarios.iter().filter(|scenario| scenario.result != PASSED).count()
    }
}

const PASSED: &str = "passed";

impl From<Outcome> for ScenarioResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { file, line, name, verdict } = outcome;
        let (result, differences, message, reasons) = match verdict {
            Verdict::Passed => (PASSED, Vec::new(), String::new(), Vec::new()),
            Verdict::Impossible { reason } => ("impossible", Vec::new(), reason, Vec::new()),
            Verdict::Failed { differences, actual } => {
                let reasons = actual.reasons.iter().map(ToString::to_string).collect();
                ("failed", differences, actual.summary, reasons)
            }
        };
        let differences = differences.into_iter().map(|it| ExpectedDifference {
            field: it.field,
            expected: it.expected,
            actual: it.actual,
        });
        Self { file, line, name, result, differences: differences.collect(), message, reasons }
    }
}

impl ScenarioResult {
    /// The lines about a scenario that does not hold; empty for others.
    #[must_use]
    pub fn report(&self) -> String {
        if self.result == PASSED {
            return String::new();
        }
        let mut text = format!("{} {}:{}: {}\n", self.result, self.file, self.line, self.name);
        for difference in &self.differences {
            text.push_str(&marked('-', &difference.field, &difference.expected));
            text.push_str(&marked('+', &difference.field, &difference.actual));
        }
        if !self.message.is_empty() {
            text.push_str(&format!("    {}\n", self.message));
        }
        let told: Vec<&str> = self.differences.iter().flat_map(|difference| difference.actual.lines()).collect();
        for reason in self.reasons.iter().filter(|reason| !told.contains(&reason.as_str())) {
            text.push_str(&format!("    {reason}\n"));
        }
        text
    }
}

/// A field's value with a mark before each line, as in a diff.
fn marked(mark: char, field: &str, value: &str) -> String {
    value.lines().map(|line| format!("  {mark} {field}: {line}\n")).collect()
}

impl Answer for PolicyTested {
    fn table(&self, _now_ms: u64) -> Sheet {
        if !self.problems.is_empty() {
            return problems_text(&self.problems, "problem").into();
        }
        let reports: Vec<String> = self.scenarios.iter().map(ScenarioResult::report).collect();
        let mut text: String =
            reports.iter().filter(|report| !report.is_empty()).map(|report| format!("{report}\n")).collect();
        let files: std::collections::BTreeSet<&str> = self.scenarios.iter().map(|it| it.file.as_str()).collect();
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let ran = format!("{} in {}", plural(self.scenarios.len(), "scenario"), plural(files.len(), "file"));
        let left_out = if self.left_out == 0 { String::new() } else { format!(", {} not run", self.left_out) };
        text.push_str(&match self.failed() {
            0 => format!("ok: {ran}{left_out}\n"),
            failed => format!("{ran}: {} passed, {failed} failed{left_out}\n", self.scenarios.len() - failed),
        });
        text.into()
    }
}
