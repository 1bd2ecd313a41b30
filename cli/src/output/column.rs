//! Columns of a table: what they hold, and which go first when the terminal is narrow.

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Names and other short texts: shown whole.
    Text,
    /// Numbers: aligned on the right.
    Number,
    /// A state: coloured.
    State,
    /// A sentence that a narrow terminal cuts off.
    Message,
    /// A text to read whole: wrapped.
    Prose,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Head, in lower case.
    pub head: &'static str,
    /// What it holds.
    pub kind: ColumnKind,
    /// The column with the highest rank is hidden first; rank 0 is never hidden.
    pub rank: u8,
}

impl Column {
    /// A column of short texts that is never hidden.
    #[must_use]
    pub const fn text(head: &'static str) -> Self {
        Self { head, kind: ColumnKind::Text, rank: 0 }
    }

    /// A column of numbers that is never hidden.
    #[must_use]
    pub const fn number(head: &'static str) -> Self {
        Self { head, kind: ColumnKind::Number, rank: 0 }
    }

    /// A column of states, which is never hidden.
    #[must_use]
    pub const fn state(head: &'static str) -> Self {
        Self { head, kind: ColumnKind::State, rank: 0 }
    }

    /// A column of sentences that a narrow terminal cuts off.
    #[must_use]
    pub const fn message(head: &'static str) -> Self {
        Self { head, kind: ColumnKind::Message, rank: 0 }
    }

    /// A column of texts that are wrapped.
    #[must_use]
    pub const fn prose(head: &'static str) -> Self {
        Self { head, kind: ColumnKind::Prose, rank: 0 }
    }

    /// The same column, hidden before columns of lower rank.
    #[must_use]
    pub const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// Whether it may be narrower than its text.
    pub(super) const fn is_flexible(self) -> bool {
        matches!(self.kind, ColumnKind::Message | ColumnKind::Prose)
    }
}

impl From<&'static str> for Column {
    fn from(head: &'static str) -> Self {
        Self::text(head)
    }
}
