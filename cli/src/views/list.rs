//! Lists of objects, read page by page.

use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns};

/// An object with one or more rows in a table.
pub trait Row: Serialize {
    /// Columns.
    const HEADS: &'static [Column];
    /// Text in place of an empty table.
    const NONE: &'static str;

    /// The object's id in the list.
    fn key(&self) -> &str;

    /// The object's rows; most objects have one.
    fn rows(&self, now_ms: u64) -> Vec<Vec<String>>;
}

/// All pages of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// Objects of all pages.
    pub items: Vec<T>,
    /// Revision of the last page.
    pub revision: u64,
}

impl<T: Row> Answer for List<T> {
    fn table(&self, now_ms: u64) -> Sheet {
        columns(T::HEADS, self.items.iter().flat_map(|item| item.rows(now_ms)).collect(), T::NONE)
    }
}
