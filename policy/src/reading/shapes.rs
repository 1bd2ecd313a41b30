//! Records which fields the readers know, and which values they accept. The JSON Schemas come from this record, so they
//! cannot differ from the readers.

use std::collections::BTreeMap;

use crate::problem::Place;

/// The values that a reader accepts at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Map,
    List {
        unique: bool,
        nonempty: bool,
    },
    /// Any text.
    Text,
    Boolean,
    /// A whole number in these bounds.
    Number(u64, u64),
    /// One of these words.
    Words(Vec<&'static str>),
    Name,
    UserId,
    Duration,
    Gpus,
    GpuHours,
    Credits,
    Date,
    Quantity,
    /// A number, or text that matches this regular expression.
    NumberOrPattern(&'static str),
    /// Text that matches this regular expression.
    Pattern(&'static str),
}

/// What a reader demands of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListDemand {
    Any,
    Unique,
    Nonempty,
}

/// A field as the readers know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownField {
    /// Whether it is required wherever its mapping is.
    pub(crate) required: bool,
    /// The place of its key, if a document that was read has it.
    pub(crate) place: Option<Place>,
    /// Its values.
    pub(crate) shape: Option<Shape>,
}

/// All fields of the documents read, by path. Items of lists have the path `list[]`.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) fields: BTreeMap<String, KnownField>,
}

impl Shapes {
    /// Notes that a reader asks for a field.
    pub(crate) fn note_field(&mut self, path: &str, required: bool, place: Option<Place>) {
        let field = self.fields.entry(of_any_item(path));
        let field = field.or_insert_with(|| KnownField { required, ..KnownField::default() });
        field.required &= required;
        field.place = field.place.or(place);
    }

    /// Completes the fields of the mapping `to` that no document had by those of `from`, which the same reader reads.
    pub(crate) fn complete(&mut self, to: &str, from: &str) {
        let lacking = self.fields.iter().filter(|(_, field)| field.shape.is_none());
        let lacking = lacking.filter_map(|(path, _)| Some((path.clone(), below(path, to)?.to_owned())));
        for (path, name) in lacking.collect::<Vec<_>>() {
            let like = format!("{from}.{name}");
            let Some(known) = self.fields.get(&like).filter(|known| known.shape.is_some()).cloned() else { continue };
            let parts = self.fields.iter().filter_map(|(part, field)| {
                let rest = part.strip_prefix(&like).filter(|rest| rest.starts_with(['.', '[']))?;
                Some((format!("{path}{rest}"), field.clone()))
            });
            let parts: Vec<(String, KnownField)> = parts.collect();
            self.fields.extend(parts);
            if let Some(field) = self.fields.get_mut(&path) {
                (field.place, field.shape) = (known.place, known.shape);
            }
        }
    }

    /// Notes the values that a reader accepts. More special readers note after the general ones that they call.
    pub(crate) fn note_shape(&mut self, path: &str, shape: Shape) {
        self.fields.entry(of_any_item(path)).or_default().shape = Some(shape);
    }

    /// Notes that a reader accepts a list, and what it demands of it.
    pub(crate) fn note_list(&mut self, path: &str, demand: ListDemand) {
        let shape = &mut self.fields.entry(of_any_item(path)).or_default().shape;
        let (mut unique, mut nonempty) = match shape {
            Some(Shape::List { unique, nonempty }) => (*unique, *nonempty),
            _ => (false, false),
        };
        match demand {
            ListDemand::Any => {}
            ListDemand::Unique => unique = true,
            ListDemand::Nonempty => nonempty = true,
        }
        *shape = Some(Shape::List { unique, nonempty });
    }
}

/// The part of a path below a mapping.
pub(crate) fn below<'p>(path: &'p str, mapping: &str) -> Option<&'p str> {
    path.strip_prefix(mapping)?.strip_prefix('.')
}

/// `lends[].maxGpus` for `lends[3].maxGpus`.
fn of_any_item(path: &str) -> String {
    let mut general = String::with_capacity(path.len());
    for part in path.split_inclusive('[') {
        general.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    general
}
