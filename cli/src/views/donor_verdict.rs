//! Whether a donor could serve a request, and why not.

use comity_proto::v1;
use serde::Serialize;

use super::value::non_empty;
use crate::output::{Column, Sheet, columns};

/// Whether one donor could serve a request, and why not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DonorVerdict {
    /// Donor cluster.
    pub donor: String,
    /// Whether the request fits there now.
    pub fits: bool,
    /// Stable code of the first reason against the donor.
    pub code: Option<String>,
    /// The reason in words.
    pub reason: Option<String>,
    /// A change that would remove the reason.
    pub unblock: Option<String>,
    /// Policy documents that cause it.
    pub by: Vec<String>,
    /// What rules of policy warn of there.
    pub warnings: Vec<String>,
}

impl From<v1::DonorVerdict> for DonorVerdict {
    fn from(verdict: v1::DonorVerdict) -> Self {
        Self {
            donor: verdict.donor,
            fits: verdict.fits,
            code: non_empty(verdict.code),
            reason: non_empty(verdict.reason),
            unblock: non_empty(verdict.unblock),
            by: verdict.by,
            warnings: verdict.warnings,
        }
    }
}

/// A row per donor; empty without verdicts.
pub(super) fn donors_table(verdicts: &[DonorVerdict]) -> Sheet {
    if verdicts.is_empty() {
        return Sheet::default();
    }
    let warns = verdicts.iter().any(|verdict| !verdict.warnings.is_empty());
    let row = |verdict: &DonorVerdict| {
        let mut cells = vec![
            verdict.donor.clone(),
            if verdict.fits { "yes".to_owned() } else { "no".to_owned() },
            verdict.reason.clone().unwrap_or_default(),
            verdict.unblock.clone().unwrap_or_default(),
            verdict.by.join(", "),
        ];
        cells.extend(warns.then(|| verdict.warnings.join("; ")));
        cells
    };
    let mut heads = vec![
        Column::text("donor"),
        Column::state("fits"),
        Column::prose("first reason against it"),
        Column::prose("what would unblock it"),
        Column::prose("by").rank(1),
    ];
    heads.extend(warns.then(|| Column::prose("warnings")));
    columns(&heads, verdicts.iter().map(row).collect(), "")
}
