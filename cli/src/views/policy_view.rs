//! Policy bundles: checked, applied, in force.

mod commit_judged;
mod plan_sheet;
mod policy_history;
mod policy_plan;
mod policy_pushed;
mod policy_source;
mod policy_tests;
mod reservation;

use comity_proto::v1;
use serde::Serialize;

use super::value::{non_empty, non_zero};
use crate::output::{Answer, Column, Sheet, columns, fields};
use crate::units::age;

pub use commit_judged::{CommitJudged, DocumentChanged, MissingSignature, RollbackPlanned};
pub use policy_history::{PolicyHistory, PolicyInForce};
pub use policy_plan::{
    BorrowingEffect, CapacityEffect, CohortEffect, CohortTerms, DocumentChange, FieldChange, InstitutionEffect,
    LeaseEffect, PolicyPlan, PolicyPlanned, QueuePlace, RequestEffect,
};
pub use policy_pushed::PolicyPushed;
pub use policy_source::{PolicyPullFailure, PolicySourceShown};
pub use policy_tests::{ExpectedDifference, PolicyTested, ScenarioResult};
pub use reservation::Reservation;

/// One problem or warning of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyProblem {
    /// Path within the bundle.
    pub file: String,
    /// Line, from 1; 0 for the bundle as a whole.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Stable code.
    pub code: String,
    /// Description.
    pub message: String,
    /// Remedy.
    pub remedy: String,
    /// Rendering for a terminal, with the lines at fault.
    #[serde(skip)]
    pub rendered: String,
}

impl From<v1::PolicyProblem> for PolicyProblem {
    fn from(problem: v1::PolicyProblem) -> Self {
        Self {
            file: problem.file,
            line: problem.line,
            column: problem.column,
            code: problem.code,
            message: problem.message,
            remedy: problem.remedy,
            rendered: problem.rendered,
        }
    }
}

impl From<&comity_policy::Problem> for PolicyProblem {
    fn from(problem: &comity_policy::Problem) -> Self {
        Self {
            file: problem.file.clone(),
            line: problem.line,
            column: problem.column,
            code: problem.code.as_str().to_owned(),
            message: problem.message.clone(),
            remedy: problem.remedy.clone(),
            rendered: problem.to_string(),
        }
    }
}

/// Result of checking a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyChecked {
    /// Whether it has no problems and, with `--deny-warnings`, no warnings.
    pub ok: bool,
    /// All problems.
    pub problems: Vec<PolicyProblem>,
    /// Valid policy that is surely a mistake; empty while there are problems.
    pub warnings: Vec<PolicyProblem>,
    /// SHA-256 of its content; none while there are problems.
    pub hash: Option<String>,
    /// Number of documents; none while there are problems.
    pub documents: Option<u32>,
    /// Number of files.
    pub files: usize,
}

impl Answer for PolicyChecked {
    fn table(&self, _now_ms: u64) -> Sheet {
        if !self.problems.is_empty() {
            return problems_text(&self.problems, "problem").into();
        }
        let warnings = if self.warnings.is_empty() { String::new() } else { problems_text(&self.warnings, "warning") };
        if !self.ok {
            return warnings.into();
        }
        let hash = self.hash.as_deref().unwrap_or_default();
        let documents = self.documents.unwrap_or(0);
        let (documents, files) = (plural(documents as usize, "document"), plural(self.files, "file"));
        format!("{warnings}ok: {documents} in {files}, hash {hash}\n").into()
    }
}

fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Renders problems or warnings as rustc would, and their number; `word` is `problem` or `warning`.
fn problems_text(problems: &[PolicyProblem], word: &str) -> String {
    let mut text: String = problems.iter().map(|problem| format!("{}\n\n", problem.rendered.trim_end())).collect();
    let files: std::collections::BTreeSet<_> = problems.iter().map(|problem| &problem.file).collect();
    text.push_str(&format!("{} in {}\n", plural(problems.len(), word), plural(files.len(), "file")));
    text
}

/// Result of applying a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyApplied {
    /// Whether it has no problems, and is in force now.
    pub ok: bool,
    /// False if it was already in force.
    pub changed: bool,
    /// All problems; with any, nothing was applied.
    pub problems: Vec<PolicyProblem>,
    /// SHA-256 of the bundle.
    pub hash: Option<String>,
    /// Number of documents.
    pub documents: u32,
    /// Git commit recorded with it.
    pub commit: Option<String>,
    /// What it changed, as planned before.
    pub plan: Option<PolicyPlan>,
}

impl Answer for PolicyApplied {
    fn table(&self, _now_ms: u64) -> Sheet {
        if !self.ok {
            return problems_text(&self.problems, "problem").into();
        }
        let outcome = if self.changed { "applied" } else { "already in force" };
        let commit = self.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
        let hash = self.hash.as_deref().unwrap_or_default();
        format!("{outcome}: {} documents, hash {hash}{commit}", self.documents).into()
    }
}

/// The bundle in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyShown {
    /// SHA-256 of its content.
    pub hash: String,
    /// Git commit recorded with it.
    pub commit: Option<String>,
    /// When it was applied.
    pub applied_at_ms: Option<u64>,
    /// Who applied it.
    pub applied_by: Option<String>,
    /// Who signed the commits that brought it into force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// The Git repository that it is pulled from.
    pub source: Option<PolicySourceShown>,
    /// Files of the bundle.
    pub files: Vec<PolicyFile>,
    /// Detail of the files in the table; JSON and YAML always have their text.
    #[serde(skip)]
    pub detail: FileDetail,
}

/// Detail of a bundle's files in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDetail {
    /// Paths and line counts.
    Paths,
    /// The text.
    Text,
}

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyFile {
    /// Path within the bundle.
    pub path: String,
    /// Content of the file.
    pub text: String,
}

impl PolicyShown {
    /// From the broker's answer.
    #[must_use]
    pub fn new(response: v1::GetPolicyResponse, detail: FileDetail) -> Self {
        let bundle = response.bundle.unwrap_or_default();
        Self {
            hash: response.hash,
            commit: non_empty(bundle.commit),
            applied_at_ms: non_zero(response.applied_at_ms),
            applied_by: non_empty(response.applied_by),
            signed_by: response.signed_by,
            source: response.source.map(|source| Some(source).into()),
            files: bundle.files.into_iter().map(|file| PolicyFile { path: file.path, text: file.text }).collect(),
            detail,
        }
    }
}

impl Answer for PolicyShown {
    fn table(&self, now_ms: u64) -> Sheet {
        let mut rows = vec![
            ("Hash", self.hash.clone()),
            ("Commit", self.commit.clone().unwrap_or_else(|| "-".to_owned())),
            ("Applied", age(self.applied_at_ms.unwrap_or(0), now_ms)),
            ("By", self.applied_by.clone().unwrap_or_default()),
        ];
        if !self.signed_by.is_empty() {
            rows.push(("Signed by", self.signed_by.join(", ")));
        }
        rows.extend(self.source.as_ref().and_then(PolicySourceShown::summary).map(|source| ("Source", source)));
        let head = fields(&rows);
        if self.detail == FileDetail::Text {
            return self.files.iter().fold(head, |sheet, file| sheet.then(format!("\n# {}\n{}", file.path, file.text)));
        }
        let row = |file: &PolicyFile| vec![file.path.clone(), file.text.lines().count().to_string()];
        let heads = [Column::text("file"), Column::number("lines")];
        head.gap().then(columns(&heads, self.files.iter().map(row).collect(), "no files"))
    }
}
