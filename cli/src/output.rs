//! Answers on standard output: tables for people, JSON and YAML for scripts.

use std::io::{self, Write as _};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// How answers look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people. May change with every release.
    #[default]
    Table,
    /// For scripts. Fields are only added.
    Json,
    /// The same fields as JSON.
    Yaml,
}

/// Something that can be printed in every format: its `Serialize` is the shape for scripts.
pub trait Answer: Serialize {
    /// For people; `now_ms` is the time that ages are counted from. Ends with a line break unless empty.
    fn table(&self, now_ms: u64) -> String;
}

impl Format {
    /// The text of an answer.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be serialised.
    pub fn render(self, answer: &impl Answer, now_ms: u64) -> Result<String, Failure> {
        let failed =
            |error: String| Failure::new(Exit::Unavailable, "internal", format!("cannot write the answer: {error}"));
        match self {
            Self::Table => Ok(answer.table(now_ms)),
            Self::Json => {
                let json = serde_json::to_string_pretty(answer).map_err(|error| failed(error.to_string()))?;
                Ok(json + "\n")
            }
            Self::Yaml => serde_saphyr::to_string(answer).map_err(|error| failed(error.to_string())),
        }
    }

    /// The text of one of many answers that follow each other: a JSON object a line, or a YAML document.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be serialised.
    pub fn render_event(self, answer: &impl Answer, now_ms: u64) -> Result<String, Failure> {
        match self {
            Self::Table => self.render(answer, now_ms),
            Self::Json => {
                let json = serde_json::to_string(answer).map_err(|error| {
                    Failure::new(Exit::Unavailable, "internal", format!("cannot write the answer: {error}"))
                })?;
                Ok(json + "\n")
            }
            Self::Yaml => Ok(format!("---\n{}", self.render(answer, now_ms)?)),
        }
    }
}

/// Writes to standard output. A reader that went away (`| head`) is no error.
///
/// # Errors
/// [`Failure`] where standard output cannot be written.
pub fn write_stdout(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::configuration(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// A table with a head line, or `none` in words.
#[must_use]
pub fn columns(heads: &[&str], rows: Vec<Vec<String>>, none: &str) -> String {
    if rows.is_empty() {
        return format!("{none}\n");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads.iter().map(|head| head.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    trimmed(&table)
}

/// One thing, a field a line; fields without a value are left out.
#[must_use]
pub fn fields(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row([format!("{name}:"), value.clone()]);
    }
    trimmed(&table)
}

/// Blank cells at the end of a line would only make it wrap; the margin at its start says nothing.
fn trimmed(table: &Table) -> String {
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line).trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Thing {
        id: String,
    }

    impl Answer for Thing {
        fn table(&self, _now_ms: u64) -> String {
            fields(&[("Id", self.id.clone()), ("Nothing", String::new())])
        }
    }

    #[test]
    fn formats() {
        let thing = Thing { id: "lease-1".to_owned() };
        let render = |format: Format| format.render(&thing, 0).expect("serialises");
        assert_eq!(render(Format::Table), "Id:  lease-1\n");
        assert_eq!(render(Format::Json), "{\n  \"id\": \"lease-1\"\n}\n");
        assert_eq!(render(Format::Yaml), "id: lease-1\n");
        assert_eq!(Format::Json.render_event(&thing, 0).expect("serialises"), "{\"id\":\"lease-1\"}\n");
        assert_eq!(Format::Yaml.render_event(&thing, 0).expect("serialises"), "---\nid: lease-1\n");
    }

    #[test]
    fn tables_have_no_blank_ends() {
        let rows = vec![vec!["a".to_owned(), String::new()], vec!["long".to_owned(), "x".to_owned()]];
        assert_eq!(columns(&["one", "two"], rows, "none"), "ONE   TWO\na\nlong  x\n");
        assert_eq!(columns(&["one"], vec![], "no leases"), "no leases\n");
    }
}
