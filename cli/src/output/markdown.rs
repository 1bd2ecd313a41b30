//! A sheet as GitHub Flavored Markdown. What others wrote stays text: it becomes no link, no image and no HTML.

use super::column::ColumnKind;
use super::sheet::{Block, Grid, Sheet};

/// Characters that mean something in Markdown or HTML.
const ACTIVE: &str = "\\`*_{}[]()<>#+-!|~&=$";

impl Sheet {
    /// The sheet as Markdown; ends with a line break unless empty.
    #[must_use]
    pub fn markdown(&self) -> String {
        let blocks: Vec<String> = self.blocks.iter().map(block).filter(|block| !block.is_empty()).collect();
        if blocks.is_empty() { String::new() } else { blocks.join("\n\n") + "\n" }
    }
}

fn block(block: &Block) -> String {
    match block {
        Block::Text(text) => match text.trim_matches('\n') {
            text if text.contains('\n') => fenced(text),
            line => inline(line.trim()),
        },
        Block::Paragraph(text) => inline(text.trim()),
        Block::Heading(text) => format!("### {}", inline(text)),
        Block::Fields(rows) => {
            let row =
                |(name, value): &(String, String)| format!("- **{}** {}", inline(name), inline(&on_a_line(value)));
            rows.iter().map(row).collect::<Vec<_>>().join("\n")
        }
        Block::Table(grid) => table(grid),
    }
}

fn table(grid: &Grid) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let heads = line(grid.columns.iter().map(|column| inline(column.head)).collect());
    let rule = |kind: ColumnKind| if kind == ColumnKind::Number { "---:" } else { "---" }.to_owned();
    let rules = line(grid.columns.iter().map(|column| rule(column.kind)).collect());
    let rows = grid.rows.iter().map(|row| line(row.iter().map(|cell| inline(cell)).collect()));
    [heads, rules].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Lines as they are, between fences that none of them closes.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{text}\n{fence}")
}

fn on_a_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line. Pairs of backticks, with which reasons quote names, stay code.
fn inline(text: &str) -> String {
    let quotes_names = text.matches('`').count().is_multiple_of(2) && !text.contains("``");
    let mut line = String::with_capacity(text.len());
    let mut in_code = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '`' if quotes_names => {
                in_code = !in_code;
                line.push(c);
            }
            // Ends a cell of a table even within code.
            '|' if in_code => line.push_str("\\|"),
            _ if in_code => line.push(c),
            '-' | '+' | '=' | '(' | ')' if !line.is_empty() => line.push(c),
            _ => {
                // A bare address would become a link.
                if ACTIVE.contains(c) || (c == ':' && chars.peek() == Some(&'/')) {
                    line.push('\\');
                }
                line.push(c);
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Column, columns, fields};

    #[test]
    fn texts_of_others_are_no_markup() {
        for (text, shown) in [
            ("poly-ml", "poly-ml"),
            ("a | b", "a \\| b"),
            ("<img src=x>", "\\<img src=x\\>"),
            ("[x](http://y)", "\\[x\\](http\\://y)"),
            ("# head", "\\# head"),
            ("- item", "\\- item"),
            ("*b* _i_ ~s~ &amp; $m$", "\\*b\\* \\_i\\_ \\~s\\~ \\&amp; \\$m\\$"),
            ("`north` does not lend `a_b|c`", "`north` does not lend `a_b\\|c`"),
            ("`unclosed <b>", "\\`unclosed \\<b\\>"),
            ("``<b>``", "\\`\\`\\<b\\>\\`\\`"),
        ] {
            assert_eq!(inline(text), shown);
        }
        assert_eq!(fenced("a\n```\nb"), "````text\na\n```\nb\n````");
    }

    #[test]
    fn each_part_of_a_sheet_has_its_form() {
        let rows = vec![vec!["lease-7".to_owned(), "2".to_owned()]];
        let table = columns(&[Column::text("lease"), Column::number("gpus")], rows, "");
        let sheet = Sheet::default().heading("leases: 1").then(table).gap();
        let sheet =
            sheet.then(fields(&[("State", "active\nnow".to_owned())])).paragraph("one *line*").then("two\nlines");
        assert_eq!(
            sheet.markdown(),
            "### leases: 1\n\n| lease | gpus |\n| --- | ---: |\n| lease-7 | 2 |\n\n- **State:** active now\n\n\
             one \\*line\\*\n\n```text\ntwo\nlines\n```\n"
        );
        assert_eq!(Sheet::default().gap().markdown(), "");
    }
}
