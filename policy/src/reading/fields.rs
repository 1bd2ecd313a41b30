//! Reads typed fields from YAML nodes and collects every problem.

use std::collections::BTreeMap;

use comity_types::is_printable_text;

use crate::amounts::{self, AmountError};
use crate::kind::Kind;
use crate::limits::{MAX_LIST_ITEMS, MAX_TEXT_CHARS, MIN_IDLE_RELEASE_MS};
use crate::problem::suggest::did_you_mean;
use crate::problem::{Place, ProblemCode, Problems, shorten};
use crate::reading::identifiers;
use crate::reading::shapes::{ListDemand, Shape, Shapes};
use crate::reading::yaml::{Node, Value};

/// The kind of object that a name in a document refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A document of this kind.
    Document(Kind),
    /// A cluster that some institution may enrol, with or without a Cluster document.
    EnrolledCluster,
    /// A purpose that the Federation declares.
    Purpose,
}

/// A name to resolve once all files are read.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) target: Target,
    pub(crate) name: String,
    pub(crate) place: Place,
}

/// A user id whose trust domain must be the federation's.
#[derive(Debug)]
pub(crate) struct UserIdUse {
    pub(crate) trust_domain: String,
    pub(crate) place: Place,
}

/// A time zone to look up once all documents are read.
#[derive(Debug)]
pub(crate) struct ZoneUse {
    pub(crate) name: String,
    pub(crate) place: Place,
}

/// Reads the values of one document's fields, and collects problems, references and places.
pub(crate) struct FieldReader<'c, 's> {
    pub(crate) problems: &'c mut Problems<'s>,
    /// Names to resolve once all documents are read.
    pub(crate) references: Vec<Reference>,
    /// User ids to check once the trust domain is known.
    pub(crate) user_ids: Vec<UserIdUse>,
    /// Time zones to look up.
    pub(crate) zones: Vec<ZoneUse>,
    /// Place of each field of the document, by path (`lends[0].maxGpus`).
    pub(crate) places: BTreeMap<String, Place>,
    /// The document's name in messages: ``Tenant `poly-ml` ``.
    pub(crate) label: String,
    /// Records what is read, if somebody asks.
    pub(crate) shapes: Option<Shapes>,
}

/// The fields of one mapping. [`finish`](Self::finish) reports the unknown ones.
pub(crate) struct Fields<'n> {
    entries: &'n [(String, Place, Node)],
    place: Place,
    path: String,
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Opens a mapping; `path` is its path within `spec`, empty for `spec` itself.
    pub(crate) fn open(node: &'n Node, path: &str, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        reader.note(path, || Shape::Map);
        match &node.value {
            Value::Map(entries) => Some(Self { entries, place: node.place, path: path.to_owned(), known: Vec::new() }),
            other => {
                reader.wrong_type(node, path, "a mapping", other);
                None
            }
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The path of a field of this mapping.
    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// An optional field. A field that is present but empty counts as absent.
    pub(crate) fn optional(
        &mut self,
        name: &'static str,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<(String, &'n Node)> {
        self.find(name, false, reader)
    }

    fn find(
        &mut self,
        name: &'static str,
        required: bool,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<(String, &'n Node)> {
        self.known.push(name);
        let found = self.entries.iter().find(|(key, ..)| key == name);
        if let Some(shapes) = &mut reader.shapes {
            shapes.note_field(&self.path_of(name), required, found.map(|(_, place, _)| *place));
        }
        let (_, key, node) = found?;
        let path = self.path_of(name);
        reader.places.insert(path.clone(), *key);
        (node.value.noun() != "nothing").then_some((path, node))
    }

    /// A required field; reports its absence.
    pub(crate) fn required(
        &mut self,
        name: &'static str,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<(String, &'n Node)> {
        let found = self.find(name, true, reader);
        if found.is_none() {
            let path = self.path_of(name);
            let place = reader.places.get(&path).copied().unwrap_or(Place { width: 1, ..self.place });
            let message = format!("{} has no `{path}`", reader.label);
            reader.problems.at(place, ProblemCode::MissingField, message, format!("add `{name}:` here"));
        }
        found
    }

    /// Reports every field that no earlier call named.
    pub(crate) fn finish(self, reader: &mut FieldReader<'_, '_>) {
        for (key, place, _) in self.entries {
            if !self.known.contains(&key.as_str()) {
                let inside = if self.path.is_empty() { String::new() } else { format!(", in `{}`", self.path) };
                let message = format!("unknown field `{}` in {}{inside}", shorten(key), reader.label);
                reader.problems.at(*place, ProblemCode::UnknownField, message, did_you_mean(key, &self.known));
            }
        }
    }
}

impl<'c, 's> FieldReader<'c, 's> {
    pub(crate) fn new(problems: &'c mut Problems<'s>) -> Self {
        Self {
            problems,
            references: Vec::new(),
            user_ids: Vec::new(),
            zones: Vec::new(),
            places: BTreeMap::new(),
            label: "the document".to_owned(),
            shapes: None,
        }
    }

    /// Notes the values that are accepted at a path.
    pub(crate) fn note(&mut self, path: &str, shape: impl FnOnce() -> Shape) {
        if let Some(shapes) = &mut self.shapes {
            shapes.note_shape(path, shape());
        }
    }

    fn note_list(&mut self, path: &str, demand: ListDemand) {
        if let Some(shapes) = &mut self.shapes {
            shapes.note_list(path, demand);
        }
    }

    pub(crate) fn wrong_type(&mut self, node: &Node, path: &str, wanted: &str, found: &Value) {
        let message = format!("`{path}` of {} must be {wanted}, not {}", self.label, found.noun());
        self.problems.at(Place { width: 1, ..node.place }, ProblemCode::WrongType, message, "");
    }

    /// The text of a scalar, uninterpreted.
    pub(crate) fn scalar<'n>(&mut self, path: &str, node: &'n Node) -> Option<&'n str> {
        self.note(path, || Shape::Text);
        match &node.value {
            Value::Scalar { text, .. } => Some(text),
            other => {
                self.wrong_type(node, path, "a single value", other);
                None
            }
        }
    }

    /// Free text: trimmed, of bounded length, without control and invisible characters.
    pub(crate) fn text(&mut self, path: &str, node: &Node) -> Option<String> {
        let text = self.scalar(path, node)?.trim();
        if text.chars().count() > MAX_TEXT_CHARS {
            let message = format!("`{path}` of {} is longer than {MAX_TEXT_CHARS} characters", self.label);
            self.problems.at(node.place, ProblemCode::TooLarge, message, "shorten it");
            return None;
        }
        if !is_printable_text(text) {
            let message = format!("`{path}` of {} has control or invisible characters", self.label);
            self.problems.at(
                node.place,
                ProblemCode::NotText,
                message,
                "delete them; look for escapes such as `\\u202e`",
            );
            return None;
        }
        Some(text.to_owned())
    }

    /// Text of a form that the caller checks.
    pub(crate) fn scalar_of_form<'n>(&mut self, path: &str, node: &'n Node, pattern: &'static str) -> Option<&'n str> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::Pattern(pattern));
        Some(text)
    }

    /// Text of a form that the caller checks, and that YAML may read as a number.
    pub(crate) fn number_of_form<'n>(&mut self, path: &str, node: &'n Node, pattern: &'static str) -> Option<&'n str> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::NumberOrPattern(pattern));
        Some(text)
    }

    /// A name: an RFC 1123 label.
    pub(crate) fn name(&mut self, path: &str, node: &Node) -> Option<String> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::Name);
        if let Err(remedy) = identifiers::check_name(text) {
            let message = format!("`{path}: {}` is not a valid name", shorten(text));
            self.problems.at(node.place, ProblemCode::InvalidName, message, remedy);
            return None;
        }
        Some(text.to_owned())
    }

    /// The name of a document or cluster that the bundle must declare.
    pub(crate) fn reference(&mut self, path: &str, node: &Node, target: Target) -> Option<String> {
        let name = self.name(path, node)?;
        self.references.push(Reference { target, name: name.clone(), place: node.place });
        Some(name)
    }

    /// The IANA name of a time zone, which the bundle must know.
    pub(crate) fn time_zone(&mut self, path: &str, node: &Node) -> Option<String> {
        let name = self.text(path, node)?;
        self.zones.push(ZoneUse { name: name.clone(), place: node.place });
        Some(name)
    }

    /// A user's SPIFFE id.
    pub(crate) fn user_id(&mut self, path: &str, node: &Node) -> Option<String> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::UserId);
        match identifiers::parse_user_id(text) {
            Ok(trust_domain) => {
                self.user_ids.push(UserIdUse { trust_domain: trust_domain.to_owned(), place: node.place });
                Some(text.to_owned())
            }
            Err(remedy) => {
                let message = format!("`{path}: {}` is not a user id", shorten(text));
                self.problems.at(node.place, ProblemCode::InvalidUserId, message, remedy);
                None
            }
        }
    }

    /// A time, or a date as its first millisecond, in milliseconds since 1970.
    pub(crate) fn start_ms(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::Date, ProblemCode::InvalidDate), amounts::parse_start_ms)
    }

    /// A time, or a date as its last millisecond, in milliseconds since 1970.
    pub(crate) fn end_ms(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::Date, ProblemCode::InvalidDate), amounts::parse_end_ms)
    }

    /// A price in milli-credits.
    pub(crate) fn credits_milli(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::Credits, ProblemCode::InvalidQuantity), amounts::parse_credits_milli)
    }

    /// A Kubernetes quantity, by a function of [`amounts::quantity`].
    pub(crate) fn quantity(&mut self, path: &str, node: &Node, parse: fn(&str) -> Option<u64>) -> Option<u64> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::Quantity);
        let value = parse(text);
        if value.is_none() {
            let message = format!("`{path}: {}` of {} is not a quantity", shorten(text), self.label);
            self.problems.at(
                node.place,
                ProblemCode::InvalidQuantity,
                message,
                "write it like `64`, `500m` or `512Gi`",
            );
        }
        value
    }

    /// An amount, parsed by a function of [`amounts`].
    fn amount<T>(
        &mut self,
        path: &str,
        node: &Node,
        (shape, code): (Shape, ProblemCode),
        parse: fn(&str) -> Result<T, AmountError>,
    ) -> Option<T> {
        let text = self.scalar(path, node)?;
        self.note(path, || shape);
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                let message = format!("`{path}: {}` of {}: {}", shorten(text), self.label, error.message);
                self.problems.at(node.place, code, message, error.remedy);
                None
            }
        }
    }

    /// A duration in milliseconds.
    pub(crate) fn duration_ms(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::Duration, ProblemCode::InvalidDuration), amounts::parse_duration_ms)
    }

    /// A duration above zero, in milliseconds.
    pub(crate) fn positive_duration_ms(&mut self, path: &str, node: &Node) -> Option<u64> {
        let ms = self.duration_ms(path, node)?;
        if ms == 0 {
            let message = format!("`{path}` of {} must be above zero", self.label);
            self.problems.at(node.place, ProblemCode::InvalidDuration, message, "write for example `30m`");
            return None;
        }
        Some(ms)
    }

    /// Idle time after which a lease is released, in milliseconds.
    pub(crate) fn idle_release_ms(&mut self, path: &str, node: &Node) -> Option<u64> {
        let ms = self.duration_ms(path, node)?;
        if ms < MIN_IDLE_RELEASE_MS {
            let message = format!("`{path}` of {} must be 10s or longer", self.label);
            let remedy = "agents report the use of leases every few seconds; leave the field out to keep idle leases";
            self.problems.at(node.place, ProblemCode::InvalidDuration, message, remedy);
            return None;
        }
        Some(ms)
    }

    /// The share of a tenant or institution, 1 to 1,000.
    pub(crate) fn weight(&mut self, path: &str, node: &Node) -> Option<u32> {
        self.number(path, node, 1, 1_000).and_then(|weight| u32::try_from(weight).ok())
    }

    /// An amount of GPUs in milli-GPU.
    pub(crate) fn gpus_milli(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::Gpus, ProblemCode::InvalidQuantity), amounts::parse_gpus_milli)
    }

    /// An amount of GPU-hours in thousandths.
    pub(crate) fn gpu_hours_milli(&mut self, path: &str, node: &Node) -> Option<u64> {
        self.amount(path, node, (Shape::GpuHours, ProblemCode::InvalidQuantity), amounts::parse_gpu_hours_milli)
    }

    /// An amount of GPUs above zero, in milli-GPU.
    pub(crate) fn positive_gpus_milli(&mut self, path: &str, node: &Node) -> Option<u64> {
        let remedy = "give the most that one request may ask for, or leave the field out";
        self.gpus_milli_unlike_zero(path, node, "would refuse every request", remedy)
    }

    /// GPUs in milli-GPU; zero is a problem, because it does what `effect` says.
    pub(crate) fn gpus_milli_unlike_zero(
        &mut self,
        path: &str,
        node: &Node,
        effect: &str,
        remedy: &str,
    ) -> Option<u64> {
        let milli = self.gpus_milli(path, node)?;
        if milli == 0 {
            let message = format!("`{path}: 0` of {} {effect}", self.label);
            self.problems.at(node.place, ProblemCode::InvalidQuantity, message, remedy);
            return None;
        }
        Some(milli)
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn number(&mut self, path: &str, node: &Node, least: u64, most: u64) -> Option<u64> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::Number(least, most));
        match text.parse::<u64>() {
            Ok(value) if (least..=most).contains(&value) && !text.starts_with('+') => Some(value),
            _ => {
                let message = format!(
                    "`{path}: {}` of {} is not a whole number from {least} to {most}",
                    shorten(text),
                    self.label
                );
                self.problems.at(node.place, ProblemCode::InvalidQuantity, message, "");
                None
            }
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, path: &str, node: &Node) -> Option<bool> {
        let value = self.word(path, node, &[("true", true), ("false", false)]);
        self.note(path, || Shape::Boolean);
        value
    }

    /// One of `words`, as its value.
    pub(crate) fn word<T: Copy>(&mut self, path: &str, node: &Node, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.scalar(path, node)?;
        self.note(path, || Shape::Words(words.iter().map(|(word, _)| *word).collect()));
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("`{path}: {}` of {} is not one of {}", shorten(text), self.label, known.join(", "));
            self.problems.at(node.place, ProblemCode::InvalidValue, message, did_you_mean(text, &known));
        }
        found
    }

    /// A list without its invalid items. The path of item 0 is `path[0]`.
    pub(crate) fn list<T>(
        &mut self,
        path: &str,
        node: &Node,
        mut item: impl FnMut(&mut Self, &str, &Node) -> Option<T>,
    ) -> Vec<T> {
        self.note_list(path, ListDemand::Any);
        let Value::List(items) = &node.value else {
            self.wrong_type(node, path, "a list", &node.value);
            return Vec::new();
        };
        if items.len() > MAX_LIST_ITEMS {
            let message =
                format!("`{path}` of {} has {} items; at most {MAX_LIST_ITEMS} are allowed", self.label, items.len());
            self.problems.at(Place { width: 1, ..node.place }, ProblemCode::TooLarge, message, "split the document");
            return Vec::new();
        }
        let mut read = Vec::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            self.places.insert(path.clone(), node.place);
            if let Some(value) = item(self, &path, node) {
                read.push(value);
            }
        }
        read
    }

    /// A list of distinct values; reports repeated ones.
    pub(crate) fn set<T: Ord + Clone + std::fmt::Display>(
        &mut self,
        path: &str,
        node: &Node,
        mut item: impl FnMut(&mut Self, &str, &Node) -> Option<T>,
    ) -> std::collections::BTreeSet<T> {
        let mut seen = std::collections::BTreeSet::new();
        self.list(path, node, |reader, path, node| {
            let value = item(reader, path, node)?;
            if !seen.insert(value.clone()) {
                let message = format!("`{value}` is listed twice in {}", reader.label);
                reader.problems.at(node.place, ProblemCode::DuplicateName, message, "remove one of them");
            }
            Some(())
        });
        self.note_list(path, ListDemand::Unique);
        seen
    }

    /// Reports an empty list. A list of invalid items is not empty: each of them has its own report.
    pub(crate) fn require_items(&mut self, path: &str, node: &Node, remedy: &str) {
        self.note_list(path, ListDemand::Nonempty);
        if matches!(&node.value, Value::List(items) if items.is_empty()) {
            let message = format!("`{path}` of {} is empty", self.label);
            self.problems.at(node.place, ProblemCode::MissingField, message, remedy);
        }
    }
}
