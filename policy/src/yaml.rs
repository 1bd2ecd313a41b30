//! YAML text to a tree of nodes that know their place.
//!
//! The tree is built from the parser's events and not through serde, for three reasons: a serde type stops at the first
//! problem, and all of them are wanted; every node keeps its place; and scalars stay text, so that `0.1` GPUs never
//! passes through a floating-point number. A document that is no YAML does not hide its neighbours in the same file: a
//! line that starts with `---` always begins a document (YAML 1.2.2 §9.1.2), so the text is cut there first.

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::limits::MAX_DEPTH;
use crate::place::{Place, Problems, to_u32};
use crate::problem::ProblemCode;

/// A node with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar {
        text: String,
        plain: bool,
        byte_start: usize,
    },
    List(Vec<Node>),
    /// Key text, key place, value. Keys are unique.
    Map(Vec<(String, Place, Node)>),
}

impl Value {
    /// The word for this sort of node in a message.
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
pub(crate) enum Document {
    /// It is YAML.
    Read(Node),
    /// It is not, which was reported. What it seems to be, so that nothing is reported just because it is missing.
    Broken { kind: Option<String>, name: Option<(String, Place)> },
}

/// Reads all documents of one file; problems go to `problems`.
pub(crate) fn read_documents(file: usize, text: &str, problems: &mut Problems<'_>) -> Vec<Document> {
    let mut documents = Vec::new();
    for chunk in chunks(text) {
        if problems.is_full() {
            break;
        }
        let is_empty = chunk.text.lines().all(|line| {
            let line = line.trim_start_matches('\u{feff}').trim();
            line.is_empty() || line.starts_with('#') || line == "---" || line == "..." || line.starts_with("--- #")
        });
        if is_empty {
            continue;
        }
        let mut reader = Reader { file, chunk: &chunk, parser: Parser::new_from_str(chunk.text), problems };
        documents.push(match reader.document() {
            Ok(node) => Document::Read(node),
            Err(Stop) => reader.guess(),
        });
    }
    documents
}

/// One document's part of a file.
struct Chunk<'t> {
    text: &'t str,
    lines_before: usize,
    bytes_before: usize,
}

fn chunks(text: &str) -> Vec<Chunk<'_>> {
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

/// The rest of the document cannot be understood; the problem was reported.
struct Stop;

struct Reader<'r, 't, 's> {
    file: usize,
    chunk: &'r Chunk<'t>,
    parser: Parser<'t, serde_saphyr::granit_parser::StrInput<'t>>,
    problems: &'r mut Problems<'s>,
}

impl<'t> Reader<'_, 't, '_> {
    fn document(&mut self) -> Result<Node, Stop> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
                (Event::StreamEnd, span) => {
                    let place = self.place(&span);
                    self.problems.at(place, ProblemCode::YamlSyntax, "the document is empty", "");
                    return Err(Stop);
                }
                (event, span) => {
                    let node = self.node(event, span, 0)?;
                    self.end()?;
                    return Ok(node);
                }
            }
        }
    }

    /// Kind and name of a document that is no YAML, from the lines that look like them.
    fn guess(&self) -> Document {
        let value = |line: &str, key: &str| Some(line.strip_prefix(key)?.trim().to_owned());
        let lines = || self.chunk.text.lines().enumerate();
        Document::Broken {
            kind: lines().find_map(|(_, line)| value(line, "kind:")),
            name: lines()
                .find_map(|(index, line)| Some((index, value(line.trim_start(), "name:")?)))
                .map(|(index, name)| (name, self.mark(index + 1, 0, 1))),
        }
    }

    /// What follows a document within its chunk must be its end.
    fn end(&mut self) -> Result<(), Stop> {
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
                    return Err(Stop);
                }
            }
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Stop> {
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
                "YAML anchors, aliases and tags are not used in policy",
                "write the value out, so that every decision can point at the line behind it",
            );
        }
        if alias {
            return Err(Stop);
        }
        if depth > MAX_DEPTH {
            self.problems.at(place, ProblemCode::TooLarge, format!("nested more than {MAX_DEPTH} levels deep"), "");
            return Err(Stop);
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
                return Err(Stop);
            }
        };
        Ok(Node { place, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Stop> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Stop> {
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
                    format!("`{text}` is given twice"),
                    format!("it is also on line {first}; keep one of them"),
                );
            } else {
                entries.push((text, key.place, value));
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Stop> {
        loop {
            return match self.parser.next() {
                // Comment events exist only with a feature of the parser that another crate may switch on.
                Some(Ok((event, _))) if format_is_comment(&event) => continue,
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
                    Err(Stop)
                }
                None => Err(Stop),
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

/// Whether the event carries presentation only.
fn format_is_comment(event: &Event<'_>) -> bool {
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

/// The place in the file of the character `index` of a scalar's value.
///
/// Folding and indentation change only white space, and quotes only add characters, so walking along both texts and
/// matching the other characters finds it. `place` is the scalar's own place, used when the walk ends early.
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
    let mut step = |wanted: char| {
        for c in source.by_ref() {
            let at = (line, column);
            if c == '\n' {
                line += 1;
                column = 1;
            } else {
                column += 1;
            }
            if c == wanted {
                return Some(at);
            }
        }
        None
    };
    // The header of a block scalar (`|`, `>-`) is no part of the value.
    let block = text[byte_start..].starts_with(['|', '>']);
    if block && step('\n').is_none() {
        return place;
    }
    let wanted = value.chars().take(index + 1).filter(|c| !c.is_whitespace());
    let mut found = None;
    for c in wanted {
        found = step(c);
        if found.is_none() {
            return place;
        }
    }
    match found {
        Some((line, column)) => Place { line, column, width: to_u32(width.max(1)), ..place },
        None => place,
    }
}
