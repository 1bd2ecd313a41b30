//! Renders answers and prints them on standard output: tables for people, JSON and YAML for scripts.

use std::io::{self, Write as _};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

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
}

/// A value that every format can print: `Serialize` gives JSON and YAML.
pub trait Answer: Serialize {
    /// The text for people; ages count from `now_ms`. Ends with a line break unless empty.
    fn table(&self, now_ms: u64) -> String;
}

impl Format {
    /// Renders the only answer of a command.
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

    /// Renders one answer of a sequence: a JSON object on one line, or a YAML document.
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

/// A table with a line of heads; the text `none` if there are no rows.
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
    trimmed_lines(&table)
}

/// One object, a field per line; omits fields with an empty value.
#[must_use]
pub fn fields(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row([format!("{name}:"), value.clone()]);
    }
    trimmed_lines(&table)
}

/// Drops the left margin and trailing blanks, which would only make lines wrap.
fn trimmed_lines(table: &Table) -> String {
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
