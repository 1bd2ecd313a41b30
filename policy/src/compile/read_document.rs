//! Reads one YAML document into the draft: header first, then the `spec` of its kind.

use std::collections::BTreeMap;

use super::draft::Draft;
use crate::documents::{Document, Federation, Spec};
use crate::kind::{API_VERSION, Kind};
use crate::problem::suggest::did_you_mean;
use crate::problem::{Place, ProblemCode, Problems, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::identifiers;
use crate::reading::yaml::Node;

/// Reads a document into the draft and reports its problems.
pub(super) fn read_document(node: &Node, draft: &mut Draft, problems: &mut Problems<'_>) {
    let mut reader = FieldReader::new(problems);
    read_header_and_spec(node, draft, &mut reader);
    draft.references.append(&mut reader.references);
    draft.user_ids.append(&mut reader.user_ids);
    draft.zones.append(&mut reader.zones);
}

fn read_header_and_spec(node: &Node, draft: &mut Draft, reader: &mut FieldReader<'_, '_>) {
    let Some(mut fields) = Fields::open(node, "", reader) else {
        return;
    };
    check_api_version(&mut fields, reader);
    let kind = read_kind(&mut fields, reader);
    if let Some(kind) = kind {
        reader.label = format!("this {kind}");
    }
    let name = read_name(kind, &mut fields, reader);
    if let (Some(kind), Some((name, _))) = (kind, &name) {
        reader.label = format!("{kind} `{name}`");
    }
    // Without a kind, which was reported, a missing `spec` needs no second report.
    let spec = match kind {
        Some(_) => fields.required("spec", reader),
        None => fields.optional("spec", reader),
    };
    fields.finish(reader);
    let Some(kind) = kind else { return };
    // From here on, paths are within `spec`.
    reader.places.clear();
    if let Some((name, place)) = &name {
        declare(kind, name, *place, draft, reader);
    }
    let (name, place) = name.unwrap_or_else(|| (String::new(), node.place));
    let Some((_, spec)) = spec else {
        draft.unreadable.insert(kind);
        return;
    };
    match kind {
        Kind::Federation => {
            let read = read_spec::<Federation>(spec, name, place, draft, reader);
            draft.federations.extend(read);
        }
        Kind::Institution => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.institutions, read);
        }
        Kind::Cluster => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.clusters, read);
        }
        Kind::Tenant => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.tenants, read);
        }
        Kind::GpuClass => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.classes, read);
        }
        Kind::Quota => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.quotas, read);
        }
        Kind::Agreement => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.agreements, read);
        }
        Kind::PriorityClass => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.priorities, read);
        }
        Kind::RequestTemplate => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.templates, read);
        }
        Kind::Schedule => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.schedules, read);
        }
        Kind::Reservation => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.reservations, read);
        }
        Kind::Rule => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.rules, read);
        }
        Kind::Dataset => {
            let read = read_spec(spec, name, place, draft, reader);
            insert_first(&mut draft.datasets, read);
        }
    }
}

/// Reads `apiVersion` and reports any other than the known one.
pub(crate) fn check_api_version(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) {
    if let Some((path, version)) = fields.required("apiVersion", reader)
        && let Some(text) = reader.scalar(&path, version)
        && text != API_VERSION
    {
        let message = format!("`apiVersion: {}` is not known", shorten(text));
        let remedy = format!("write `apiVersion: {API_VERSION}`");
        reader.problems.at(version.place, ProblemCode::UnknownApiVersion, message, remedy);
    }
}

fn read_kind(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Kind> {
    let (path, node) = fields.required("kind", reader)?;
    let text = reader.scalar(&path, node)?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
    if kind.is_none() {
        let message = format!("`kind: {}` is not known", shorten(text));
        let remedy = did_you_mean(text, &Kind::ALL.map(Kind::as_str));
        reader.problems.at(node.place, ProblemCode::UnknownKind, message, remedy);
    }
    kind
}

/// `metadata.name` and its place.
fn read_name(kind: Option<Kind>, fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<(String, Place)> {
    let (path, node) = fields.required("metadata", reader)?;
    let mut metadata = Fields::open(node, &path, reader)?;
    let name = metadata.required("name", reader).and_then(|(path, node)| {
        let text = reader.scalar(&path, node)?;
        let checked = match kind {
            Some(Kind::Dataset) => identifiers::check_dataset_name(text),
            _ => identifiers::check_name(text),
        };
        if let Err(remedy) = checked {
            let message = format!("`{path}: {}` is not a valid name", shorten(text));
            reader.problems.at(node.place, ProblemCode::InvalidName, message, remedy);
            return None;
        }
        Some((text.to_owned(), node.place))
    });
    metadata.finish(reader);
    name
}

/// Records a document's name, or reports that another document of its kind has it.
fn declare(kind: Kind, name: &str, place: Place, draft: &mut Draft, reader: &mut FieldReader<'_, '_>) {
    let key = (kind, name.to_owned());
    if let Some(first) = draft.declared.get(&key) {
        let file = reader.problems.files().get(first.file).map_or("", |file| file.path.as_str());
        let message = format!("there are two documents {kind} `{name}`");
        let remedy = format!("the first is in {file}:{}; rename or remove one of them", first.line);
        reader.problems.at(place, ProblemCode::DuplicateName, message, remedy);
    } else {
        draft.declared.insert(key, place);
    }
}

fn read_spec<T: Spec>(
    node: &Node,
    name: String,
    place: Place,
    draft: &mut Draft,
    reader: &mut FieldReader<'_, '_>,
) -> Option<Document<T>> {
    let spec = Fields::open(node, "", reader).and_then(|mut fields| {
        let spec = T::read(&mut fields, reader);
        fields.finish(reader);
        spec
    });
    if spec.is_none() {
        draft.unreadable.insert(T::KIND);
    }
    let places = std::mem::take(&mut reader.places);
    spec.map(|spec| Document::new(T::KIND, name, place, reader.problems.files(), spec, places))
}

/// Keeps the first document of each name.
fn insert_first<T>(documents: &mut BTreeMap<String, Document<T>>, document: Option<Document<T>>) {
    if let Some(document) = document {
        documents.entry(document.name.clone()).or_insert(document);
    }
}
