//! The bundles that came into force.

use comity_audit::AuditRecord;
use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns};
use crate::units::format_time;
use crate::views::value::non_empty;

const HISTORY_HEADS: [Column; 5] = [
    Column::text("since"),
    Column::number("revision").rank(2),
    Column::text("commit"),
    Column::text("by").rank(1),
    Column::text("hash").rank(3),
];

/// The bundles that came into force, the newest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyHistory {
    /// The bundles.
    pub items: Vec<PolicyInForce>,
}

/// A bundle that came into force.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyInForce {
    /// When, in log time.
    pub since_ms: u64,
    /// Revision of the state after it.
    pub revision: u64,
    /// SHA-256 of the bundle, in hex.
    pub hash: String,
    /// Its Git commit, if one was recorded.
    pub commit: Option<String>,
    /// Who applied it: a user, or the broker that pulled it.
    pub by: String,
}

impl From<AuditRecord> for PolicyInForce {
    fn from(record: AuditRecord) -> Self {
        Self {
            since_ms: record.time_ms,
            revision: record.revision,
            hash: record.subject.id,
            commit: record.cause.strip_prefix("commit ").and_then(|commit| non_empty(commit.to_owned())),
            by: record.actor,
        }
    }
}

impl Answer for PolicyHistory {
    fn table(&self, _now_ms: u64) -> Sheet {
        let row = |item: &PolicyInForce| {
            vec![
                format_time(item.since_ms).unwrap_or_default(),
                item.revision.to_string(),
                item.commit.clone().unwrap_or_else(|| "-".to_owned()),
                item.by.clone(),
                item.hash.clone(),
            ]
        };
        columns(&HISTORY_HEADS, self.items.iter().map(row).collect(), "no bundle came into force")
    }
}
