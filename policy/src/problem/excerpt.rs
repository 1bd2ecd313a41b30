//! Source text cut to a width that fits a message.

use comity_types::{is_steering, redact_secrets};

use super::place::to_u32;

/// Characters of a source line that a snippet shows.
const SNIPPET_CHARS: usize = 120;

/// Characters before and after a problem in which secrets are sought.
const SECRET_CHARS: usize = 1_024;

/// Characters of a value that a message shows.
const VALUE_CHARS: usize = 80;

/// A source line, ready for display above a caret.
#[derive(Default)]
pub(super) struct Snippet {
    pub(super) line: String,
    /// Offset of the caret in `line`, in characters from 0.
    pub(super) caret: u32,
    /// Characters of the line from the caret on.
    pub(super) chars_after_caret: u32,
}

/// Cuts line `line` of `text` around `column` (both from 1). Empty if `text` has no such line.
pub(super) fn snippet(text: &str, line: u32, column: u32) -> Snippet {
    let Some(source) = (line as usize).checked_sub(1).and_then(|index| text.lines().nth(index)) else {
        return Snippet::default();
    };
    let column = (column as usize).saturating_sub(1);
    // A line may have a megabyte. Secrets are sought where the snippet is, and far enough around to recognise them.
    let before = column.saturating_sub(SECRET_CHARS);
    let around: String = source.chars().skip(before).take(2 * SECRET_CHARS).collect();
    let to_column: String = around.chars().take(column - before).collect();
    let shown = redact_secrets(&around);
    let column = if shown == around { column - before } else { redact_secrets(&to_column).chars().count() };
    let skipped = if column > SNIPPET_CHARS * 2 / 3 { column - SNIPPET_CHARS / 2 } else { 0 };
    let visible: String = shown
        .chars()
        .skip(skipped)
        .take(SNIPPET_CHARS)
        // A tab or another control character would move the caret, or the terminal.
        .map(|c| if is_steering(c) { ' ' } else { c })
        .collect();
    let length = visible.chars().count();
    let caret = column.saturating_sub(skipped).min(length);
    let prefix = if before + skipped > 0 { "…" } else { "" };
    Snippet {
        line: format!("{prefix}{}", visible.trim_end()),
        caret: to_u32(caret + prefix.chars().count()),
        chars_after_caret: to_u32(length.saturating_sub(caret)),
    }
}

/// Shortens a value for a message: one line of at most 80 characters.
pub(crate) fn shorten(value: &str) -> String {
    shorten_to(value, VALUE_CHARS)
}

/// Shortens a value to one line of at most `limit` characters.
pub(crate) fn shorten_to(value: &str, limit: usize) -> String {
    let mut short: String = value.chars().take(limit).map(|c| if is_steering(c) { ' ' } else { c }).collect();
    if value.chars().count() > limit {
        short.push('…');
    }
    short
}
