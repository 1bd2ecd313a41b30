//! Lists of things.

use serde::Serialize;

use crate::output::{Answer, columns};

/// A thing that has a line in a table.
pub trait Row: Serialize {
    /// Heads of the columns.
    const HEADS: &'static [&'static str];
    /// What is said in place of an empty table.
    const NONE: &'static str;

    /// The thing's lines (most have one).
    fn rows(&self, now_ms: u64) -> Vec<Vec<String>>;
}

/// All pages of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// The things.
    pub items: Vec<T>,
    /// Revision that the last page was read at.
    pub revision: u64,
}

impl<T: Row> Answer for List<T> {
    fn table(&self, now_ms: u64) -> String {
        columns(T::HEADS, self.items.iter().flat_map(|item| item.rows(now_ms)).collect(), T::NONE)
    }
}
