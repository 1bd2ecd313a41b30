//! How a bundle differs from another one: documents added, changed and removed.
//!
//! Documents are compared by what they mean: comments, layout, the file, the order of a set and a default that is written
//! out change nothing. The fields of a changed document are shown as people wrote them.

mod field_changes;

use std::collections::BTreeMap;

use self::field_changes::field_changes;
use super::Bundle;
use crate::documents::{DocRef, Document};
use crate::kind::Kind;
use crate::problem::{Place, Problems};
use crate::reading::yaml::{Node, ParsedDocument, Value, parse_documents};
use crate::source::BundleSource;

/// Changed documents that are named; the others are only counted.
const MAX_DOCUMENTS_NAMED: usize = 100;
/// Changed fields of one document that are named.
const MAX_FIELDS_NAMED: usize = 32;
/// Changed fields of all documents that are named: the differences fit into a message.
const MAX_FIELDS_IN_ALL: usize = 1_000;

/// The differences between two bundles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleChanges {
    /// The first changed documents, by kind and name.
    pub documents: Vec<DocumentChange>,
    /// Number of new documents.
    pub added: usize,
    /// Number of documents with another `spec`.
    pub changed: usize,
    /// Number of documents that are no longer there.
    pub removed: usize,
    /// Time zones that both bundles name, with other offsets: they come from another release of the IANA database.
    pub zones: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentChange {
    /// The document in the new bundle; a removed one in the old bundle.
    pub document: DocRef,
    /// What happened to it.
    pub difference: Difference,
}

/// What happened to a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It is new.
    Added,
    /// Its `spec` means something else.
    Changed {
        /// The first fields that differ.
        fields: Vec<FieldChange>,
        /// Further fields that differ.
        more: usize,
    },
    /// It is no longer there.
    Removed,
}

/// A field that differs, or one item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Path within `spec`, such as `lends[0].maxGpus`. Items of a set have the path of their list.
    pub path: String,
    /// The value before; `None` for a new one.
    pub before: Option<String>,
    /// The value now; `None` for a removed one.
    pub after: Option<String>,
}

impl BundleChanges {
    /// Whether the two bundles mean the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added + self.changed + self.removed == 0 && self.zones.is_empty()
    }
}

impl Bundle {
    /// The changes that lead from `before` to this bundle; from no bundle, all documents are new.
    #[must_use]
    pub fn changes_since(&self, before: Option<&Self>) -> BundleChanges {
        let mut found = Vec::new();
        for kind in Kind::ALL {
            let compared = match kind {
                Kind::Federation => compare(before.map(|before| &before.federation), [&self.federation]),
                Kind::Institution => {
                    compare(before.into_iter().flat_map(|it| it.institutions.values()), self.institutions.values())
                }
                Kind::Cluster => {
                    compare(before.into_iter().flat_map(|it| it.clusters.values()), self.clusters.values())
                }
                Kind::Tenant => compare(before.into_iter().flat_map(|it| it.tenants.values()), self.tenants.values()),
                Kind::GpuClass => compare(before.into_iter().flat_map(|it| it.classes.values()), self.classes.values()),
                Kind::Quota => compare(before.into_iter().flat_map(|it| it.quotas.values()), self.quotas.values()),
                Kind::Agreement => {
                    compare(before.into_iter().flat_map(|it| it.agreements.values()), self.agreements.values())
                }
                Kind::PriorityClass => {
                    compare(before.into_iter().flat_map(|it| it.priorities.values()), self.priorities.values())
                }
                Kind::RequestTemplate => {
                    compare(before.into_iter().flat_map(|it| it.templates.values()), self.templates.values())
                }
                Kind::Schedule => {
                    compare(before.into_iter().flat_map(|it| it.schedules.values()), self.schedules.values())
                }
                Kind::Reservation => {
                    compare(before.into_iter().flat_map(|it| it.reservations.values()), self.reservations.values())
                }
                Kind::Rule => compare(before.into_iter().flat_map(|it| it.rules.values()), self.rules.values()),
                Kind::Dataset => {
                    compare(before.into_iter().flat_map(|it| it.datasets.values()), self.datasets.values())
                }
            };
            found.extend(compared);
        }
        let count = |sought: Status| found.iter().filter(|(_, status)| *status == sought).count();
        let (added, changed, removed) = (count(Status::Added), count(Status::Changed), count(Status::Removed));
        // Only what is shown is read again.
        found.truncate(MAX_DOCUMENTS_NAMED);
        let specs = before.filter(|_| changed > 0).map(|before| [before, self].map(|it| Specs::of(&it.source)));
        let mut left = MAX_FIELDS_IN_ALL;
        let documents = found.into_iter().map(|(document, status)| {
            let difference = match status {
                Status::Added => Difference::Added,
                Status::Removed => Difference::Removed,
                Status::Changed => {
                    let mut fields = specs.as_ref().map(|specs| changed_fields(specs, &document)).unwrap_or_default();
                    let named = fields.len().min(MAX_FIELDS_NAMED).min(left);
                    left -= named;
                    let more = fields.len() - named;
                    fields.truncate(named);
                    Difference::Changed { fields, more }
                }
            };
            DocumentChange { document, difference }
        });
        let documents = documents.collect();
        let zones = before.into_iter().flat_map(|before| &before.source.zones);
        let zones = zones.filter(|(name, rules)| self.source.zones.get(*name).is_some_and(|now| now != *rules));
        BundleChanges { documents, added, changed, removed, zones: zones.map(|(name, _)| name.clone()).collect() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Added,
    Changed,
    Removed,
}

/// The documents of one kind that differ, by name.
fn compare<'b, T: PartialEq + 'b>(
    before: impl IntoIterator<Item = &'b Document<T>>,
    after: impl IntoIterator<Item = &'b Document<T>>,
) -> Vec<(DocRef, Status)> {
    let mut all: BTreeMap<&str, [Option<&Document<T>>; 2]> = BTreeMap::new();
    before.into_iter().for_each(|document| all.entry(&document.name).or_default()[0] = Some(document));
    after.into_iter().for_each(|document| all.entry(&document.name).or_default()[1] = Some(document));
    let differs = |pair: [Option<&Document<T>>; 2]| match pair {
        [Some(old), None] => Some((old.cite(""), Status::Removed)),
        [None, Some(new)] => Some((new.cite(""), Status::Added)),
        [Some(old), Some(new)] => (old.spec != new.spec).then(|| (new.cite(""), Status::Changed)),
        [None, None] => None,
    };
    all.into_values().filter_map(differs).collect()
}

/// The `spec` of each document, as written.
struct Specs(BTreeMap<(String, String), Node>);

impl Specs {
    /// Reads the files of a bundle that has compiled.
    fn of(source: &BundleSource) -> Self {
        let mut problems = Problems::new(&source.files);
        let mut specs = BTreeMap::new();
        for (index, file) in source.files.iter().enumerate() {
            for document in parse_documents(index, &file.text, &mut problems) {
                let ParsedDocument::Valid(Node { value: Value::Map(fields), .. }) = document else { continue };
                let mut key = (String::new(), String::new());
                let mut spec = None;
                for (name, _, node) in fields {
                    match (name.as_str(), node.value) {
                        ("kind", Value::Scalar { text, .. }) => key.0 = text,
                        ("metadata", Value::Map(fields)) => key.1 = name_of(fields),
                        ("spec", value) => spec = Some(Node { place: node.place, value }),
                        _ => {}
                    }
                }
                specs.extend(spec.map(|spec| (key, spec)));
            }
        }
        Self(specs)
    }

    fn get(&self, kind: Kind, name: &str) -> Option<&Node> {
        self.0.get(&(kind.as_str().to_owned(), name.to_owned()))
    }
}

fn name_of(metadata: Vec<(String, Place, Node)>) -> String {
    let name = metadata.into_iter().find(|(key, ..)| key == "name").map(|(.., node)| node.value);
    if let Some(Value::Scalar { text, .. }) = name { text } else { String::new() }
}

fn changed_fields([before, after]: &[Specs; 2], document: &DocRef) -> Vec<FieldChange> {
    let specs = [before, after].map(|specs| specs.get(document.kind, &document.name));
    let [Some(before), Some(after)] = specs else { return Vec::new() };
    field_changes(before, after)
}
