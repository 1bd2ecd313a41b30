//! Policy documents: what each kind says, and how it is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use agreement::{Agreement, AgreementSides};
pub use cluster::{Cluster, DeliveryKind, LendTerm, NodeSharing, NvLinkSharing};
pub use federation::{Defaults, Federation, Limits};
pub use gpu_class::GpuClass;
pub use institution::Institution;
pub use priority_class::PriorityClass;
pub use quota::{Quota, QuotaSubject};
pub use tenant::{Tenant, TenantRole};

use crate::bundle::SourceFile;
use crate::fields::{Context, Fields};
use crate::kind::Kind;
use crate::place::Place;

mod agreement;
mod cluster;
mod federation;
mod gpu_class;
mod institution;
mod priority_class;
mod quota;
mod tenant;

/// How one kind's `spec` is read.
pub(crate) trait Spec: Sized {
    /// The kind.
    const KIND: Kind;
    /// Reads all fields, reporting every problem; `None` if one of them leaves nothing usable.
    fn read(fields: &mut Fields<'_>, context: &mut Context<'_, '_>) -> Option<Self>;
}

/// Where a document begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The path of its file within the bundle.
    pub file: String,
    /// The line of its `metadata.name`, from 1.
    pub line: u32,
}

/// A document, or a line of one, that a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DocRef {
    /// The kind of the document.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The path of its file within the bundle.
    pub file: String,
    /// The line that decided, from 1.
    pub line: u32,
}

impl std::fmt::Display for DocRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({}:{})", self.kind, self.name, self.file, self.line)
    }
}

/// A document of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document<T> {
    /// The kind.
    pub kind: Kind,
    /// `metadata.name`.
    pub name: String,
    /// Where it begins.
    pub origin: Origin,
    /// What it says.
    pub spec: T,
    /// Place of each field, by its path within `spec`.
    #[serde(skip)]
    pub(crate) places: BTreeMap<String, Place>,
    /// Place of its name.
    #[serde(skip)]
    pub(crate) place: Place,
}

impl<T> Document<T> {
    pub(crate) fn new(
        kind: Kind,
        name: String,
        place: Place,
        files: &[SourceFile],
        spec: T,
        places: BTreeMap<String, Place>,
    ) -> Self {
        let file = files.get(place.file).map_or_else(String::new, |file| file.path.clone());
        Self { kind, name, origin: Origin { file, line: place.line }, spec, places, place }
    }

    /// A reference to the line of a field (its path within `spec`, such as `lends[0].maxGpus`), or to the document
    /// where it does not have the field.
    #[must_use]
    pub(crate) fn at(&self, path: &str) -> DocRef {
        DocRef {
            kind: self.kind,
            name: self.name.clone(),
            file: self.origin.file.clone(),
            line: self.places.get(path).map_or(self.origin.line, |place| place.line),
        }
    }

    /// The place of a field, or of the name.
    pub(crate) fn place_of(&self, path: &str) -> Place {
        self.places.get(path).copied().unwrap_or(self.place)
    }
}
