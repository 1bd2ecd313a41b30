//! Records of the audit log as a table.

use comity_audit::{AuditRecord, Citation, DONE, Entry};
use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns};
use crate::units::format_time;

/// Heads of the table.
pub(super) const HEADS: [Column; 8] = [
    Column::number("record"),
    Column::text("time").rank(3),
    Column::text("actor").rank(1),
    Column::text("act"),
    Column::text("subject"),
    Column::state("outcome").rank(2),
    Column::message("cause"),
    Column::message("policy"),
];

/// Records in a table.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Records(pub(super) Vec<AuditRecord>);

impl Answer for Records {
    fn table(&self, _now_ms: u64) -> Sheet {
        let rows = self.0.iter().map(row).collect();
        columns(&HEADS, rows, "no records")
    }
}

/// One row of the table.
pub(super) fn row(record: &AuditRecord) -> Vec<String> {
    vec![
        record.index.to_string(),
        format_time(record.time_ms).unwrap_or_default(),
        name(&record.actor).to_owned(),
        record.act.clone(),
        record.subject.id.clone(),
        if record.outcome == DONE { String::new() } else { record.outcome.clone() },
        record.cause.clone(),
        record.reasons.iter().map(cited).collect::<Vec<_>>().join(", "),
    ]
}

/// A citation, as errors and explanations write it.
pub(crate) fn cited(citation: &Citation) -> String {
    let Citation { kind, name, file, line } = citation;
    format!("{kind} {name} ({file}:{line})")
}

/// A record as a row of an endless table; `None` for one that is withheld.
pub(super) fn entry_row(entry: &Entry) -> Option<Vec<String>> {
    match entry {
        Entry::Record(record, _) => Some(row(record)),
        Entry::Withheld { .. } => None,
    }
}

/// The end of a SPIFFE id, which is long.
fn name(actor: &str) -> &str {
    actor.strip_prefix("spiffe://").and_then(|id| id.split_once('/')).map_or(actor, |(_, name)| name)
}
