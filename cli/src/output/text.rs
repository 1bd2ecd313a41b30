//! Widths of texts in columns of a terminal, where a character takes none, one or two.

use std::borrow::Cow;

use textwrap::{Options, WordSplitter};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most `limit` columns, with … in place of the rest.
pub(crate) fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    if width(text) <= limit {
        return Cow::Borrowed(text);
    }
    let (mut taken, mut kept) = (0, String::new());
    for letter in text.chars() {
        taken += letter.width().unwrap_or(0);
        if taken + 1 > limit {
            break;
        }
        kept.push(letter);
    }
    Cow::Owned(kept.trim_end().to_owned() + "…")
}

/// The text in lines of at most `limit` columns. Later lines start with `indent`.
pub(crate) fn wrap(text: &str, limit: usize, indent: &str) -> Vec<String> {
    // A hyphen in an id or a flag is no place for a line break.
    let options = Options::new(limit).subsequent_indent(indent).word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(width("日本"), 4);
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("a long text", 7), "a long…");
    }

    #[test]
    fn later_lines_are_indented_and_ids_stay_whole() {
        assert_eq!(wrap("run comity lease-7 now", 12, "  "), ["run comity", "  lease-7", "  now"]);
        assert_eq!(wrap("", 10, "  "), [""]);
    }
}
