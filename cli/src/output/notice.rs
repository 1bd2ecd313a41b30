//! Lines of the form `error: …` and `remedy: …` on standard error.

use anstyle::{AnsiColor, Style};
use comity_types::printable;

use super::page::Page;
use super::text::wrap;
use super::tone::{HEAD, paint};

/// Later lines of a text are indented by this.
const NOTICE_INDENT: &str = "  ";
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Colours the label at the start of each line, and wraps the lines to the page. Shows only printable text.
#[must_use]
pub fn labelled(text: &str, page: Page) -> String {
    let mut out = String::new();
    for line in printable(text).lines() {
        let lines = page.width.map_or_else(|| vec![line.to_owned()], |width| wrap(line, width, NOTICE_INDENT));
        for (number, part) in lines.iter().enumerate() {
            let label = part.split_once(": ").filter(|(label, _)| number == 0 && is_label(label));
            match label {
                Some((label, rest)) => {
                    let style = if label == "error" { ERROR } else { HEAD };
                    out.push_str(&paint(&format!("{label}:"), style, page.coloured));
                    out.push_str(&format!(" {rest}"));
                }
                None => out.push_str(part),
            }
            out.push('\n');
        }
    }
    out
}

/// A label is one lower-case word.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_coloured_and_lines_wrapped() {
        let text = "error: no lease \"lease-99\"\nremedy: see 'comity lease list'\n";
        assert_eq!(labelled(text, Page::PLAIN), text);
        let narrow = labelled(text, Page::of_width(24));
        assert!(narrow.lines().all(|line| line.len() <= 24) && narrow.contains("\n  lease list'"), "{narrow}");
        let coloured = labelled(text, Page { width: None, coloured: true });
        assert!(coloured.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m no lease"), "{coloured:?}");
        assert!(coloured.contains("\u{1b}[1mremedy:\u{1b}[0m see"), "{coloured:?}");
    }
}
