//! The verdict on the commits of a clone.

use comity_policy::{Bundle, Difference};
use comity_provenance::{ObjectId, Reason, UnsignedChange, Verdict};
use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns, fields};
use crate::units::counted;

/// Whether the head of a clone could come into force.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitJudged {
    /// The judged commit.
    pub head: String,
    /// The commit by whose policy it was judged; none if the policy in force has none.
    pub base: Option<String>,
    /// `in-force`, `accepted` or `refused`.
    pub verdict: &'static str,
    /// If accepted: commits since the base.
    pub commits: Option<usize>,
    /// If accepted: the documents whose meaning changes.
    pub documents: Vec<DocumentChanged>,
    /// If refused: the stable code of the reason.
    pub code: Option<&'static str>,
    /// If refused: the commit to look at.
    pub commit: Option<String>,
    /// If refused: the reason.
    pub reason: Option<String>,
    /// If refused: what to do about it.
    pub remedy: Option<String>,
    /// Changes that lack a signature: the first ones.
    pub unsigned: Vec<MissingSignature>,
    /// Further changes that lack a signature.
    pub more_unsigned: usize,
}

/// A document that changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentChanged {
    /// `added`, `changed` or `removed`.
    pub change: &'static str,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its file, in the bundle that has it.
    pub file: String,
    /// Its line there.
    pub line: u32,
}

/// A change that lacks a signature.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingSignature {
    /// The commit that made the change.
    pub commit: String,
    /// The changed document.
    pub document: String,
    /// Whose signatures are missing.
    pub missing: String,
    /// What the commit's own signature is worth.
    pub signature: String,
}

/// What a rollback would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RollbackPlanned {
    /// The commit whose policy would come back.
    pub to: String,
    /// The documents whose meaning would change, compared with the policy in force.
    pub documents: Vec<DocumentChanged>,
}

impl From<&UnsignedChange> for MissingSignature {
    fn from(change: &UnsignedChange) -> Self {
        Self {
            commit: change.commit.to_string(),
            document: change.document.to_string(),
            missing: change.missing.clone(),
            signature: change.signature.clone(),
        }
    }
}

impl CommitJudged {
    /// `base` has the policy `before`.
    #[must_use]
    pub fn new(head: ObjectId, base: Option<ObjectId>, before: &Bundle, verdict: &Verdict) -> Self {
        let judged = Self {
            head: head.to_string(),
            base: base.map(|base| base.to_string()),
            verdict: "in-force",
            commits: None,
            documents: Vec::new(),
            code: None,
            commit: None,
            reason: None,
            remedy: None,
            unsigned: Vec::new(),
            more_unsigned: 0,
        };
        match verdict {
            Verdict::Unchanged => judged,
            Verdict::Accepted(accepted) => Self {
                verdict: "accepted",
                commits: Some(accepted.commits),
                documents: changed_documents(before, &accepted.bundle),
                ..judged
            },
            Verdict::Refused(refused) => {
                let (unsigned, more_unsigned) = match &refused.reason {
                    Reason::Unsigned { changes, more, .. } => (changes.iter().map(Into::into).collect(), *more),
                    _ => (Vec::new(), 0),
                };
                Self {
                    verdict: "refused",
                    code: Some(refused.reason.code()),
                    commit: Some(refused.commit.to_string()),
                    reason: Some(refused.to_string()),
                    remedy: Some(refused.remedy()),
                    unsigned,
                    more_unsigned,
                    ..judged
                }
            }
        }
    }
}

impl RollbackPlanned {
    /// From the policy in force to that of the commit `to`.
    #[must_use]
    pub fn new(to: ObjectId, in_force: &Bundle, older: &Bundle) -> Self {
        Self { to: to.to_string(), documents: changed_documents(in_force, older) }
    }
}

impl CommitJudged {
    /// The changes that lack a signature.
    fn unsigned_sheet(&self) -> Sheet {
        let heads = [
            Column::text("document"),
            Column::prose("missing signature"),
            Column::text("commit").rank(1),
            Column::prose("signature of the commit").rank(2),
        ];
        let row = |it: &MissingSignature| {
            let short = it.commit.chars().take(12).collect();
            vec![it.document.clone(), it.missing.clone(), short, it.signature.clone()]
        };
        let sheet = columns(&heads, self.unsigned.iter().map(row).collect(), "");
        let more = counted(self.more_unsigned, "further change lacks a signature", "further changes lack signatures");
        if self.more_unsigned > 0 { sheet.paragraph(more) } else { sheet }
    }
}

fn changed_documents(before: &Bundle, after: &Bundle) -> Vec<DocumentChanged> {
    let changes = after.changes_since(Some(before)).documents.into_iter();
    let changed = changes.map(|change| DocumentChanged {
        change: match change.difference {
            Difference::Added => "added",
            Difference::Changed { .. } => "changed",
            Difference::Removed => "removed",
        },
        kind: change.document.kind.to_string(),
        name: change.document.name,
        file: change.document.file,
        line: change.document.line,
    });
    changed.collect()
}

fn documents_sheet(documents: &[DocumentChanged]) -> Sheet {
    let heads = [Column::text("change"), Column::text("document"), Column::text("line").rank(1)];
    let row = |document: &DocumentChanged| {
        let DocumentChanged { change, kind, name, file, line } = document;
        vec![(*change).to_owned(), format!("{kind} {name}"), format!("{file}:{line}")]
    };
    columns(&heads, documents.iter().map(row).collect(), "no document changes its meaning")
}

impl Answer for CommitJudged {
    fn table(&self, _now_ms: u64) -> Sheet {
        let verdict = match (self.verdict, self.code) {
            ("in-force", _) => "is in force".to_owned(),
            ("accepted", _) => "can come into force".to_owned(),
            (_, code) => format!("cannot come into force: {}", code.unwrap_or_default()),
        };
        let base = self.base.clone().unwrap_or_else(|| "the policy in force, which has no commit".to_owned());
        let sheet = fields(&[
            ("Head", self.head.clone()),
            ("Judged by", base),
            ("Verdict", verdict),
            ("Commits", self.commits.map(|count| count.to_string()).unwrap_or_default()),
        ]);
        if self.verdict == "accepted" {
            return sheet.gap().then(documents_sheet(&self.documents));
        }
        let Some(remedy) = &self.remedy else { return sheet };
        let sheet = if self.unsigned.is_empty() {
            sheet.gap().paragraph(format!("reason: {}", self.reason.as_deref().unwrap_or_default()))
        } else {
            sheet.gap().then(self.unsigned_sheet())
        };
        sheet.gap().paragraph(format!("remedy: {remedy}"))
    }
}

impl Answer for RollbackPlanned {
    fn table(&self, _now_ms: u64) -> Sheet {
        documents_sheet(&self.documents).gap().paragraph(format!("nothing was committed; rollback to {}", self.to))
    }
}
