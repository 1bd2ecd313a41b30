//! Inserts one item into a YAML list, by text, so that comments and layout stay.

/// The place of a list in its document. Lines and columns count from 1.
pub(super) enum FieldPlace {
    /// The document has the field.
    Present {
        /// Line of the key.
        line: u32,
        /// Column of the key, in characters.
        column: u32,
        /// Line of the first item, if any.
        first_item: Option<u32>,
    },
    /// The document lacks the field.
    Absent {
        /// Line of a field beside it.
        before: u32,
    },
}

/// The text with `item` in the list; `None` if the list has another form than `[a, b]` or one item a line.
pub(super) fn insert_item(text: &str, place: &FieldPlace, field: &str, item: &str) -> Option<String> {
    match *place {
        FieldPlace::Absent { before } => {
            let start = line_start(text, before)?;
            Some(insert_line(text, start, &format!("{field}: [{item}]")))
        }
        FieldPlace::Present { line, column, first_item } => {
            let line_at = line_start(text, line)?;
            let key = text.get(line_at..)?.char_indices().nth(usize::try_from(column).ok()?.checked_sub(1)?)?.0;
            let value = line_at + key + field.len() + 1;
            let rest = text.get(value..)?;
            let blanks = rest.len() - rest.trim_start_matches(' ').len();
            if rest[blanks..].starts_with('[') {
                return insert_in_brackets(text, value + blanks, item);
            }
            match first_item {
                Some(first) if first > line => {
                    let start = line_start(text, first)?;
                    let is_item = text.get(start..)?.trim_start_matches(' ').starts_with("- ");
                    is_item.then(|| insert_line(text, start, &format!("- {item}")))
                }
                Some(_) => None,
                None => Some(format!("{} [{item}]{rest}", &text[..value])),
            }
        }
    }
}

/// Inserts at the end of a list in brackets that opens at `open`.
fn insert_in_brackets(text: &str, open: usize, item: &str) -> Option<String> {
    let mut depth = 0_usize;
    let close = text.get(open..)?.char_indices().find_map(|(at, c)| {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(open + at)
    })?;
    let before = text[..close].trim_end();
    let separator = match before.as_bytes().last() {
        Some(b'[') => "",
        Some(b',') => " ",
        _ => ", ",
    };
    Some(format!("{before}{separator}{item}{}", &text[before.len()..]))
}

/// Inserts a line before the one that starts at `start`, with its indentation.
fn insert_line(text: &str, start: usize, line: &str) -> String {
    let (before, after) = text.split_at(start);
    let indent = &after[..after.len() - after.trim_start_matches(' ').len()];
    format!("{before}{indent}{line}\n{after}")
}

/// Offset of a line's first byte.
fn line_start(text: &str, line: u32) -> Option<usize> {
    match line {
        0 => None,
        1 => Some(0),
        _ => Some(text.match_indices('\n').nth(usize::try_from(line).ok()? - 2)?.0 + 1),
    }
}
