//! Parses YAML text to a tree of nodes with positions.
//!
//! The tree comes from parser events rather than serde, so that all problems are reported, every node keeps its
//! position, and scalars stay text (`0.1` GPUs never becomes a floating-point number). The text is split at `---` lines
//! first, which always begin a document (YAML 1.2.2 §9.1.2), so that an invalid document does not hide the next one.

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::limits::MAX_DEPTH;
use crate::problem::{Place, ProblemCode, Problems, to_u32};

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar {
        text: String,
        /// Whether the scalar has no quotes and is no block.
        plain: bool,
        /// Offset of the scalar in its file.
        byte_start: usize,
    },
    List(Vec<Node>),
    /// Key text, key place, value. Keys are unique.
    Map(Vec<(String, Place, Node)>),
}

impl Value {
    /// The noun for this value in a message.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Scalar { text, plain: true, .. } if matches!(text.as_str(), "" | "~" | "null") => "nothing",
            Self::Scalar { .. } => "a single value",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// A document of a file.
pub(crate) enum ParsedDocument {
    /// The root node.
    Valid(Node),
    /// Not valid YAML, as reported. Carries the kind and name it seems to have, so that references to it resolve.
    Invalid { kind: Option<String>, name: Option<(String, Place)> },
}

/// Parses all documents of file number `file`.
pub(crate) fn parse_documents(file: usize, text: &str, problems: &mut Problems<'_>) -> Vec<ParsedDocument> {
    let mut documents = Vec::new();
    for chunk in split_documents(text) {
        if problems.is_full() {
            break;
        }
        let is_empty = chunk.text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---" || line == "..." || line.starts_with("--- #")
        });
        if is_empty {
            continue;
        }
        let mut parser = DocumentParser { file, chunk: &chunk, events: Parser::new_from_str(chunk.text), problems };
        documents.push(match parser.parse() {
            Ok(node) => ParsedDocument::Valid(node),
            Err(Reported) => parser.guess(),
        });
    }
    documents
}

/// The part of a file with one document.
struct Chunk<'t> {
    text: &'t str,
    lines_before: usize,
    bytes_before: usize,
}

fn split_documents(text: &str) -> Vec<Chunk<'_>> {
    let mut starts = vec![(0, 0)];
    let mut bytes = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker && bytes > 0 {
            starts.push((bytes, index));
        }
        bytes += line.len();
    }
    starts
        .iter()
        .enumerate()
        .map(|(index, &(start, lines_before))| Chunk {
            text: &text[start..starts.get(index + 1).map_or(text.len(), |next| next.0)],
            lines_before,
            bytes_before: start,
        })
        .collect()
}

/// The document cannot be parsed further. The problem was reported.
struct Reported;

struct DocumentParser<'r, 't, 's> {
    file: usize,
    chunk: &'r Chunk<'t>,
    events: Parser<'t, serde_saphyr::granit_parser::StrInput<'t>>,
    problems: &'r mut Problems<'s>,
}

impl<'t> DocumentParser<'_, 't, '_> {
    fn parse(&mut self) -> Result<Node, Reported> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
                (Event::StreamEnd, span) => {
                    let place = self.place(&span);
                    self.problems.at(place, ProblemCode::YamlSyntax, "the document is empty", "");
                    return Err(Reported);
                }
                (event, span) => {
                    let node = self.node(event, span, 0)?;
                    self.expect_end()?;
                    return Ok(node);
                }
            }
        }
    }

    /// Takes kind and name of an invalid document from the lines `kind:` and `name:`.
    fn guess(&self) -> ParsedDocument {
        let value = |line: &str, key: &str| Some(line.strip_prefix(key)?.trim().to_owned());
        let lines = || self.chunk.text.lines().enumerate();
        ParsedDocument::Invalid {
            kind: lines().find_map(|(_, line)| value(line, "kind:")),
            name: lines()
                .find_map(|(index, line)| Some((index, value(line.trim_start(), "name:")?)))
                .map(|(index, name)| (name, self.mark(index + 1, 0, 1))),
        }
    }

    /// Reports text after the document within its chunk.
    fn expect_end(&mut self) -> Result<(), Reported> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, span) => {
                    let place = self.place(&span);
                    self.problems.at(
                        place,
                        ProblemCode::YamlSyntax,
                        "text after the end of the document",
                        "start each document with a line `---`",
                    );
                    return Err(Reported);
                }
            }
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Reported> {
        let place = self.place(&span);
        let (anchor, tagged) = match &event {
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(_, anchor, tag)
            | Event::MappingStart(_, anchor, tag) => (*anchor != 0, tag.is_some()),
            _ => (false, false),
        };
        let alias = matches!(event, Event::Alias(_));
        if anchor || tagged || alias {
            self.problems.at(
                place,
                ProblemCode::UnsupportedYaml,
                "YAML anchors, aliases and tags are not allowed in policy",
                "write the value out, so that every decision can point at the line behind it",
            );
        }
        if alias {
            return Err(Reported);
        }
        if depth > MAX_DEPTH {
            self.problems.at(place, ProblemCode::TooLarge, format!("nested more than {MAX_DEPTH} levels deep"), "");
            return Err(Reported);
        }
        let value = match event {
            Event::Scalar(text, style, ..) => Value::Scalar {
                text: text.into_owned(),
                plain: style == ScalarStyle::Plain,
                byte_start: self.chunk.bytes_before + span.start.byte_offset().unwrap_or_default(),
            },
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            _ => {
                self.problems.at(place, ProblemCode::YamlSyntax, "a value is expected here", "");
                return Err(Reported);
            }
        };
        Ok(Node { place, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Reported> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Reported> {
        let mut entries: Vec<(String, Place, Node)> = Vec::new();
        let mut seen = std::collections::BTreeMap::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Map(entries));
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let Value::Scalar { text, .. } = key.value else {
                self.problems.at(key.place, ProblemCode::UnsupportedYaml, "a key must be a single word", "");
                continue;
            };
            if let Some(first) = seen.insert(text.clone(), key.place.line) {
                self.problems.at(
                    key.place,
                    ProblemCode::DuplicateField,
                    format!("`{text}` appears twice"),
                    format!("it is also on line {first}; keep one of them"),
                );
            } else {
                entries.push((text, key.place, value));
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Reported> {
        loop {
            return match self.events.next() {
                // Comment events exist only with a feature of the parser that another crate may switch on.
                Some(Ok((event, _))) if is_presentation(&event) => continue,
                Some(Ok(next)) => Ok(next),
                Some(Err(error)) => {
                    let mark = error.marker();
                    let place = self.mark(mark.line(), mark.col(), 1);
                    let info = error.info();
                    let message = if info.is_empty() {
                        "this is not YAML".to_owned()
                    } else {
                        format!("this is not YAML: {info}")
                    };
                    self.problems.at(
                        place,
                        ProblemCode::YamlSyntax,
                        message,
                        "look at indentation, at `:` and at quotes here and in the line before",
                    );
                    Err(Reported)
                }
                None => Err(Reported),
            };
        }
    }

    fn mark(&self, line: usize, column: usize, width: usize) -> Place {
        Place {
            file: self.file,
            line: to_u32(self.chunk.lines_before + line.max(1)),
            column: to_u32(column + 1),
            width: to_u32(width.max(1)),
        }
    }

    fn place(&self, span: &Span) -> Place {
        let width =
            if span.end.line() == span.start.line() { span.end.col().saturating_sub(span.start.col()) } else { 1 };
        self.mark(span.start.line(), span.start.col(), width)
    }
}

/// Whether the event has no content, such as a comment.
fn is_presentation(event: &Event<'_>) -> bool {
    !matches!(
        event,
        Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::Alias(_)
            | Event::UnresolvedAlias(_)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd
    )
}

/// The place in the file of character `index` of a scalar's value; the scalar's own `place` if not found.
///
/// Walks along the source and the value together, skipping white space of the value and unmatched characters of the
/// source: folding and indentation change only white space, and quotes only add characters.
pub(crate) fn place_within(
    text: &str,
    place: Place,
    byte_start: usize,
    value: &str,
    index: usize,
    width: usize,
) -> Place {
    let Some(source) = text.get(byte_start..) else {
        return place;
    };
    let (mut line, mut column) = (place.line, place.column);
    let mut source = source.chars();
    let mut advance_to = |target: char| {
        for c in source.by_ref() {
            let at = (line, column);
            if c == '\n' {
                line += 1;
                column = 1;
            } else {
                column += 1;
            }
            if c == target {
                return Some(at);
            }
        }
        None
    };
    // The header of a block scalar (`|`, `>-`) is not part of the value.
    let block = text[byte_start..].starts_with(['|', '>']);
    if block && advance_to('\n').is_none() {
        return place;
    }
    let characters = value.chars().take(index + 1).filter(|c| !c.is_whitespace());
    let mut found = None;
    for c in characters {
        found = advance_to(c);
        if found.is_none() {
            return place;
        }
    }
    match found {
        Some((line, column)) => Place { line, column, width: to_u32(width.max(1)), ..place },
        None => place,
    }
}
