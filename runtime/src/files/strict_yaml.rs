//! Reads YAML files of settings. Reports all mistakes of a file at once, each with its field, line and remedy.
//!
//! The parser stops at the first mistake. So the reader repairs it in a copy of the text, by the nearest known name or
//! by leaving the entry out, and parses again.

use std::fmt;

use comity_types::is_steering;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::{Error, Location, MessageFormatter as _, UserMessageFormatter};
use strsim::osa_distance;

/// Characters of a line that are shown.
const SHOWN_CHARS: usize = 80;
/// Mistakes reported at once; whoever made more reads the documentation first.
const MAX_MISTAKES: usize = 20;
/// Repairs of one text: some mistakes need several.
const MAX_REPAIRS: usize = 3 * MAX_MISTAKES;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Path of the field, as in "fabric.keepaliveSeconds"; empty for the whole file.
    pub field: String,
    /// Line, from 1; 0 if unknown.
    pub line: usize,
    /// Column, from 1; 0 if unknown.
    pub column: usize,
    /// The problem and its remedy.
    pub problem: String,
    /// The line's text, shortened.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)?;
        if self.line > 0 {
            write!(f, " at line {}, column {}", self.line, self.column)?;
        }
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {:?}", self.text) }
    }
}

/// Reads a text.
///
/// # Errors
/// All mistakes, in the order of the file.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Mistake>> {
    let first = match parse::<T>(text) {
        Ok(value) => return Ok(value),
        Err(first) => first,
    };
    let mut mistakes = vec![first.mistake(text)];
    // Without a structure, or with all that is there read well, there is nothing to repair.
    let is_incomplete = matches!(first.error, Error::SerdeMissingField { .. });
    if is_incomplete || serde_saphyr::from_str::<IgnoredAny>(text).is_err() {
        return Err(mistakes);
    }
    let mut repaired = text.to_owned();
    let mut last = first;
    for _ in 0..MAX_REPAIRS {
        let Some(next_text) = last.repair(&repaired).filter(|next| *next != repaired) else { break };
        repaired = next_text;
        last = match parse::<T>(&repaired) {
            Ok(_) => break,
            Err(next) => next,
        };
        if last.is_about_syntax() || mistakes.len() == MAX_MISTAKES {
            break;
        }
        // A missing field has no entry that could be left out.
        let is_missing = matches!(last.error, Error::SerdeMissingField { .. });
        if !last.follows_from(&mistakes) {
            mistakes.push(last.mistake(text));
        }
        if is_missing {
            break;
        }
    }
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    Err(mistakes)
}

/// A refused text: the parser's error, and the path that it had reached.
struct Refused {
    field: String,
    error: Error,
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Refused> {
    let mut field = String::new();
    let read = serde_saphyr::with_deserializer_from_str(text, |yaml| {
        let mut track = serde_path_to_error::Track::new();
        T::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track)).inspect_err(|_| {
            let path = track.path();
            if path.iter().next().is_some() {
                // A key of a map may be any text.
                field = path.to_string().replace(is_steering, "");
            }
        })
    });
    read.map_err(|error| match error {
        Error::WithSnippet { error, .. } => Refused { field, error: *error },
        error => Refused { field, error },
    })
}

impl Refused {
    fn mistake(&self, text: &str) -> Mistake {
        let place = self.error.location().filter(|place| *place != Location::UNKNOWN);
        let number = |number: u64| usize::try_from(number).unwrap_or(0);
        let line = place.map_or(0, |place| number(place.line()));
        let written = line.checked_sub(1).and_then(|above| text.lines().nth(above)).unwrap_or_default().trim();
        Mistake {
            field: self.field.clone(),
            line,
            column: place.map_or(0, |place| number(place.column())),
            problem: self.problem(),
            text: written.chars().take(SHOWN_CHARS).collect(),
        }
    }

    /// The problem in words for people; those of the parser are for programmers.
    fn problem(&self) -> String {
        match &self.error {
            Error::Unexpected { expected: "mapping start", .. } => "expected fields, as in {field: value}".to_owned(),
            Error::Unexpected { expected: "sequence start", .. } => "expected a list, as in [a, b]".to_owned(),
            Error::InvalidScalar { ty, .. } if is_integer_type(ty) => "expected a whole number".to_owned(),
            Error::InvalidScalar { .. } => "expected a value of another type".to_owned(),
            Error::MultipleDocuments { .. } => "the file holds several documents, and only one is read".to_owned(),
            Error::DuplicateMappingKey { key, .. } => {
                format!("{} is given twice", plain(key.as_deref().unwrap_or("a field")))
            }
            Error::SerdeUnknownField { field, expected, .. } => {
                format!("unknown field {field:?}; {}", did_you_mean(field, expected))
            }
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                format!("unknown value {variant:?}; {}", did_you_mean(variant, expected))
            }
            Error::SerdeMissingField { field, .. } => format!("the field {field} is missing"),
            other => plain(&UserMessageFormatter.format_message(other)),
        }
    }

    /// Whether this is an effect of a repair: something is missing where an entry was left out.
    fn follows_from(&self, mistakes: &[Mistake]) -> bool {
        let below = |path: &str| if self.field.is_empty() { path.to_owned() } else { format!("{}.{path}", self.field) };
        let is_in_or_below = |path: &str| {
            let rests = mistakes.iter().filter_map(|mistake| mistake.field.strip_prefix(path));
            rests.into_iter().any(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match &self.error {
            Error::SerdeUnknownField { field, .. } => {
                let problem = self.problem();
                mistakes.iter().any(|mistake| mistake.problem == problem && mistake.text.contains(field.as_str()))
            }
            Error::SerdeMissingField { field, .. } => is_in_or_below(&below(field)),
            _ => is_in_or_below(&self.field),
        }
    }

    /// Whether the text is no YAML any more: a repair went wrong.
    const fn is_about_syntax(&self) -> bool {
        matches!(self.error, Error::Eof { .. } | Error::MultipleDocuments { .. } | Error::DuplicateMappingKey { .. })
    }

    /// The text without this mistake.
    fn repair(&self, text: &str) -> Option<String> {
        let place = self.error.location()?;
        let line = usize::try_from(place.line()).ok()?.checked_sub(1)?;
        let (written, near) = match &self.error {
            Error::SerdeUnknownField { field, expected, .. } => (field, nearest(field, expected)),
            Error::SerdeUnknownVariant { variant, expected, .. } => (variant, nearest(variant, expected)),
            _ => return Some(without_entry(text, line)),
        };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        match near {
            Some(near) if lines.get(line)?.contains(written.as_str()) => {
                let column = usize::try_from(place.column()).ok()?.saturating_sub(1);
                let at = lines[line].char_indices().nth(column).map_or(0, |(at, _)| at);
                let at = if lines[line][at..].contains(written.as_str()) { at } else { 0 };
                let fixed = lines[line][at..].replacen(written.as_str(), near, 1);
                lines[line].replace_range(at.., &fixed);
                Some(lines.join("\n"))
            }
            _ => Some(without_entry(text, line)),
        }
    }
}

/// The text without the entry that begins at a line, and what belongs to it. Keeps all line numbers.
fn without_entry(text: &str, line: usize) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let Some(first) = lines.get(line).copied() else { return text.to_owned() };
    let key = first.find(|letter: char| !letter.is_whitespace() && letter != '-').unwrap_or(first.len());
    let is_entry = first[key..].contains(": ") || first.trim_end().ends_with(':');
    // "- a: 1" keeps its dash, because the item's other fields follow.
    let kept = first[..key].trim_end();
    lines[line] = if is_entry { kept } else { "" };
    for below in lines.iter_mut().skip(line + 1) {
        let indent = below.len() - below.trim_start().len();
        let is_item = below.trim_start().starts_with("- ") && indent == key && first.trim_end().ends_with(':');
        if !below.trim().is_empty() && indent <= key && !is_item {
            break;
        }
        *below = "";
    }
    lines.join("\n")
}

/// A remedy for a name that is not known here.
fn did_you_mean(word: &str, known: &[&'static str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The known word nearest to `word`, if few enough edits separate them for a typing error.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word: String = word.chars().take(SHOWN_CHARS).flat_map(char::to_lowercase).collect();
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    let distances = known.iter().map(|candidate| (osa_distance(&word, &candidate.to_lowercase()), *candidate));
    distances.filter(|(distance, _)| *distance <= allowed).min().map(|(_, candidate)| candidate)
}

/// One line without control and invisible characters.
fn plain(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String = text.chars().filter(|letter| !is_steering(*letter)).collect();
    if text.is_empty() { "it is not YAML".to_owned() } else { text }
}

/// Whether a Rust type name is an integer's.
fn is_integer_type(ty: &str) -> bool {
    ty.strip_prefix(['u', 'i']).is_some_and(|bits| bits.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct File {
        state_dir: String,
        brokers: Vec<String>,
        fabric: Fabric,
        mode: Mode,
        functions: Vec<Function>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Fabric {
        keepalive_seconds: u64,
        endpoints: Vec<String>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Function {
        resource: String,
        gbits: u32,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Mode {
        #[default]
        Netstack,
        Tun,
    }

    fn found(text: &str) -> Vec<(usize, String)> {
        let mistakes = read::<File>(text).expect_err("it has mistakes");
        mistakes.into_iter().map(|mistake| (mistake.line, mistake.to_string())).collect()
    }

    #[test]
    fn all_mistakes_of_a_file_are_reported() {
        let text = "stateDri: /a\nfabric:\n  keepaliveSeconds: many\n  endpionts: [a]\nmode: tunn\nfunctions:\n\
                    - resource: a\n  gbit: 5\nbrokers: no\nunheardOf:\n  deep: 1\n";
        let found = found(text);
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 3, 4, 5, 8, 9, 10], "{found:#?}");
        for (index, part) in [
            (0, "did you mean \"stateDir\"?"),
            (1, "fabric.keepaliveSeconds: expected a whole number at line 3"),
            (2, "did you mean \"endpoints\"?"),
            (3, "unknown value \"tunn\"; did you mean \"tun\"?"),
            (4, "did you mean \"gbits\"?"),
            (5, "brokers: expected a list"),
            (6, "known here: stateDir, brokers, fabric, mode, functions"),
        ] {
            assert!(found[index].1.contains(part), "{part}: {found:#?}");
        }
    }

    #[test]
    fn a_mistake_is_reported_once() {
        for text in [
            "fabric:\n  keepaliveSeconds: [1]\n",
            "functions:\n- resource: a\n",
            "functions: [{resource: a, gbits: x}]\n",
            "fabric: {keepaliveSeconds: x}\n",
            "a: [",
            "stateDir: a\nstateDir: b\n",
            "- a\n",
        ] {
            let found = found(text);
            assert_eq!(found.len(), 1, "{text}: {found:#?}");
        }
        assert_eq!(read::<File>("stateDir: /a\n").map(|file| file.state_dir), Ok("/a".to_owned()));
    }

    #[test]
    fn names_are_corrected_where_they_stand() {
        let found = found("fabric: {keepaliveSecond: x, endpoints: []}\n");
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].1.contains("keepaliveSeconds") && found[1].1.contains("whole number"), "{found:#?}");
    }
}
