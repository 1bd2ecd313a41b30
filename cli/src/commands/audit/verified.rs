//! The result of `comity audit verify`.

use comity_audit::TreeHead;
use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns};

/// A log without an edit, a gap or a swap.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditVerified {
    /// Size and root of what was checked.
    pub(super) head: TreeHead,
    /// Records of which only the hash is known.
    pub(super) withheld: u64,
    /// The brokers.
    pub(super) brokers: Vec<ComparedBroker>,
    /// Anchors that the log continues.
    pub(super) anchors: Vec<TreeHead>,
}

/// One broker's log, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ComparedBroker {
    /// Its address.
    pub(super) address: String,
    /// Records of its log; none if it did not answer.
    pub(super) size: Option<u64>,
    /// Whether it has the same records; a broker with others fails the check.
    pub(super) agrees: bool,
    /// Why it was not compared.
    pub(super) problem: String,
}

impl Answer for AuditVerified {
    fn table(&self, _now_ms: u64) -> Sheet {
        let withheld = match self.withheld {
            0 => String::new(),
            count => format!("; you may read {} of them, and the hashes of the others fit", self.head.size - count),
        };
        let text = format!("ok: {} records without an edit, a gap or a swap{withheld}", self.head.size);
        let longest = self.brokers.iter().filter_map(|broker| broker.size).max().unwrap_or(0);
        let missing = match longest.saturating_sub(self.head.size) {
            0 => String::new(),
            count => format!("; the brokers have {count} more, which were not checked"),
        };
        let rows = self.brokers.iter().map(|broker| {
            let agrees = if broker.agrees { "yes" } else { "not compared" };
            let size = broker.size.map_or_else(String::new, |size| size.to_string());
            vec![broker.address.clone(), size, agrees.to_owned(), broker.problem.clone()]
        });
        let heads =
            [Column::text("broker"), Column::number("records"), Column::text("agrees"), Column::message("problem")];
        let sheet = Sheet::default().paragraph(format!("{text}{missing}")).paragraph(format!("head: {}", self.head));
        let sheet =
            self.anchors.iter().fold(sheet, |sheet, anchor| sheet.paragraph(format!("continues anchor {anchor}")));
        sheet.gap().then(columns(&heads, rows.collect(), "no broker was compared"))
    }
}
