//! Renders answers and prints them on standard output: tables for people, JSON and YAML for scripts.

mod column;
mod fit;
mod markdown;
mod notice;
mod page;
mod sheet;
pub(crate) mod text;
pub(crate) mod tone;

use std::io::{self, Write as _};

use clap::ValueEnum;
use comity_types::{is_printable_text, printable, printable_json};
use serde::Serialize;

pub use column::{Column, ColumnKind};
pub use notice::labelled;
pub use page::{ColorMode, Page, TableWidth};
pub use sheet::Sheet;

use crate::exit::Exit;
use crate::failure::Failure;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people; may change with every release
    #[default]
    Table,
    /// For scripts; releases only add fields
    Json,
    /// The same fields as JSON
    Yaml,
    /// The table as GitHub Flavored Markdown, for a comment
    Markdown,
}

/// A value that every format can print: `Serialize` gives JSON and YAML.
pub trait Answer: Serialize {
    /// The text for people; ages count from `now_ms`.
    fn table(&self, now_ms: u64) -> Sheet;
}

impl Format {
    /// Whether programs read it, rather than people.
    #[must_use]
    pub const fn is_for_scripts(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// Renders the only answer of a command; text for people is laid out for `page`.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be serialised.
    pub fn render(self, answer: &impl Answer, now_ms: u64, page: Page) -> Result<String, Failure> {
        match self {
            Self::Table => Ok(answer.table(now_ms).render(page)),
            Self::Json => {
                let json = serde_json::to_string_pretty(answer).map_err(|error| failed(&error))?;
                Ok(printable_json(&json).into_owned() + "\n")
            }
            Self::Yaml => yaml(answer),
            Self::Markdown => Ok(answer.table(now_ms).markdown()),
        }
    }

    /// Renders one answer of a sequence: a JSON object on one line, or a YAML document.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be serialised.
    pub fn render_event(self, answer: &impl Answer, now_ms: u64, page: Page) -> Result<String, Failure> {
        match self {
            Self::Table | Self::Markdown => self.render(answer, now_ms, page),
            Self::Json | Self::Yaml => self.one_of_many(answer),
        }
    }

    /// Renders one value of a sequence for scripts: a JSON object on one line, or a YAML document.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be serialised.
    pub(crate) fn one_of_many(self, value: &impl Serialize) -> Result<String, Failure> {
        match self {
            Self::Yaml => yaml(value).map(|yaml| format!("---\n{yaml}")),
            Self::Json | Self::Table | Self::Markdown => json_line(value),
        }
    }
}

/// YAML that shows every character. JSON is YAML, so it stands in where the text has characters that only JSON escapes.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Failure> {
    let yaml = serde_saphyr::to_string(value).map_err(|error| failed(&error))?;
    if is_printable_text(&yaml) { Ok(yaml) } else { json_line(value) }
}

/// One line of JSON that shows every character.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string(value).map_err(|error| failed(&error))?;
    Ok(printable_json(&json).into_owned() + "\n")
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Unavailable, "internal", format!("cannot write the answer: {error}"))
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub fn write_stdout(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::configuration(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a rendered text to standard error. A closed standard error is no reason to stop.
pub(crate) fn write_stderr(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Writes a note for people to standard error, on a line of its own.
pub(crate) fn note(text: &str) {
    write_stderr(&format!("{}\n", printable(text)));
}

/// A table with a line of heads; the text `none` if there are no rows. A plain head is a column of short texts that is
/// never hidden.
#[must_use]
pub fn columns<C: Copy + Into<Column>>(heads: &[C], rows: Vec<Vec<String>>, none: &str) -> Sheet {
    if rows.is_empty() {
        return Sheet::from(none);
    }
    Sheet::of_table(heads.iter().map(|head| (*head).into()).collect(), rows)
}

/// One object, a field per line; omits fields with an empty value.
#[must_use]
pub fn fields(rows: &[(&str, String)]) -> Sheet {
    Sheet::of_fields(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Thing {
        id: String,
    }

    impl Answer for Thing {
        fn table(&self, _now_ms: u64) -> Sheet {
            fields(&[("Id", self.id.clone()), ("Nothing", String::new())])
        }
    }

    #[test]
    fn formats() {
        let thing = Thing { id: "lease-1".to_owned() };
        let render = |format: Format| format.render(&thing, 0, Page::PLAIN).expect("serialises");
        assert_eq!(render(Format::Table), "Id:  lease-1\n");
        assert_eq!(render(Format::Json), "{\n  \"id\": \"lease-1\"\n}\n");
        assert_eq!(render(Format::Yaml), "id: lease-1\n");
        let event = |format: Format| format.render_event(&thing, 0, Page::PLAIN).expect("serialises");
        assert_eq!(event(Format::Json), "{\"id\":\"lease-1\"}\n");
        assert_eq!(event(Format::Yaml), "---\nid: lease-1\n");
    }

    /// What an agent or a broker may send to take over the terminal of who lists leases.
    const ESCAPES: &str = "down\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}1m\u{8}\r\u{202e}state\u{7f}";

    fn shows_only_characters(text: &str) -> bool {
        is_printable_text(text) && text.contains("owned")
    }

    #[test]
    fn ansi_escapes_in_failure_message() {
        let thing = Thing { id: ESCAPES.to_owned() };
        for format in [Format::Table, Format::Json, Format::Yaml] {
            for text in [format.render(&thing, 0, Page::PLAIN), format.render_event(&thing, 0, Page::of_width(40))] {
                let text = text.expect("serialises");
                assert!(shows_only_characters(&text), "{text:?}");
            }
        }
        for format in [Format::Json, Format::Yaml] {
            let text = format.render(&thing, 0, Page::PLAIN).expect("serialises");
            let value: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
            assert_eq!(value["id"], ESCAPES, "scripts get what was sent");
        }
        let rows = || vec![vec![ESCAPES.to_owned(), "two\nlines".to_owned()]];
        let table = columns(&["one", "two"], rows(), "");
        assert!(shows_only_characters(&table.to_string()) && table.to_string().lines().count() == 2, "{table}");
        let continued = Sheet::continued(vec!["one".into(), "two".into()], rows(), &mut Vec::new());
        for sheet in [continued, Sheet::from(ESCAPES), Sheet::default().paragraph(ESCAPES).heading(ESCAPES)] {
            for page in [Page::PLAIN, Page::of_width(30)] {
                assert!(shows_only_characters(&sheet.render(page)), "{sheet}");
            }
        }
        let failure = Failure::refused("not-found", ESCAPES).field("lease", ESCAPES).remedy(ESCAPES);
        let text = labelled(&failure.text(), Page::PLAIN);
        assert!(shows_only_characters(&text), "{text:?}");
        assert!(shows_only_characters(&failure.json()), "{}", failure.json());
    }

    #[test]
    fn a_value_cannot_add_a_field_of_its_own() {
        let sheet = fields(&[("Message", "failed\nState: active".to_owned())]);
        for page in [Page::PLAIN, Page::of_width(40)] {
            assert_eq!(sheet.render(page), "Message:  failed\n          State: active\n");
        }
    }

    #[test]
    fn tables_have_no_blank_ends() {
        let rows = vec![vec!["a".to_owned(), String::new()], vec!["long".to_owned(), "x".to_owned()]];
        assert_eq!(columns(&["one", "two"], rows, "none").to_string(), "ONE   TWO\na\nlong  x\n");
        assert_eq!(columns(&["one"], vec![], "no leases").to_string(), "no leases\n");
    }

    fn leases() -> Sheet {
        let heads = [
            Column::text("lease"),
            Column::text("tenant").rank(2),
            Column::number("gpus").rank(1),
            Column::state("state"),
            Column::message("message"),
        ];
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        let rows = vec![
            row(["lease-7", "poly-ml", "2", "active", ""]),
            row([
                "lease-12",
                "astronomie-données",
                "12",
                "suspect",
                "the agent of 東京 has been silent for some minutes",
            ]),
        ];
        columns(&heads, rows, "no leases")
    }

    #[test]
    fn no_line_of_a_table_is_longer_than_the_terminal() {
        for limit in [40, 60, 80, 120] {
            for line in leases().lines(Page::of_width(limit)) {
                assert!(text::width(&line) <= limit, "{limit}: {line}");
            }
        }
        assert_eq!(
            leases().render(Page::of_width(60)),
            "LEASE     GPUS  STATE    MESSAGE\n\
             lease-7      2  active\n\
             lease-12    12  suspect  the agent of 東京 has been silent…\n\
             1 column hidden; --wide shows all\n"
        );
    }

    #[test]
    fn hidden_columns_are_counted() {
        let text = leases().render(Page::of_width(50));
        assert!(text.contains("1 column hidden; --wide shows all") && !text.contains("TENANT"), "{text}");
        assert!(!leases().to_string().contains("hidden"), "a pipe gets every column");
    }

    #[test]
    fn colours_cover_the_words_and_no_blanks() {
        let text = leases().render(Page { width: Some(120), coloured: true });
        assert!(text.contains("\u{1b}[32mactive\u{1b}[0m\n"), "{text:?}");
        assert!(text.contains("\u{1b}[33msuspect\u{1b}[0m  the agent"), "{text:?}");
    }

    #[test]
    fn texts_of_a_narrow_table_are_below_their_rows() {
        let heads = [Column::text("donor"), Column::state("fits"), Column::prose("reason"), Column::prose("remedy")];
        let reason = "the quota of poly-ml at this donor is used up by three other leases";
        let row = ["ncc-main", "no", reason, "release a lease, or ask for a larger quota"].map(str::to_owned).to_vec();
        let sheet = columns(&heads, vec![row], "");
        assert!(sheet.lines(Page::of_width(60))[1].starts_with("ncc-main  no    the quota of"), "{sheet}");
        let narrow = sheet.lines(Page::of_width(50));
        assert_eq!(narrow[1], "ncc-main  no");
        assert!(narrow[2].starts_with("  reason: the quota"), "{narrow:#?}");
        assert!(narrow.iter().all(|line| text::width(line) <= 50), "{narrow:#?}");
    }

    #[test]
    fn values_of_fields_are_wrapped_under_themselves() {
        let sheet = fields(&[("State", "active".to_owned()), ("Message", "one two three four five six".to_owned())]);
        let lines = sheet.lines(Page::of_width(30));
        assert_eq!(lines, ["State:    active", "Message:  one two three four", "          five six"]);
        assert_eq!(sheet.lines(Page::PLAIN).len(), 2);
    }
}
