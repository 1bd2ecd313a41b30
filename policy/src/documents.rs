//! Policy documents: one module per kind, with its fields and their reader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use agreement::{Agreement, AgreementData, AgreementSides};
pub(crate) use cluster::DELIVERIES;
pub use cluster::{Cluster, LendTerm, NodeSharing, NvLinkSharing};
pub use commit_key::{CommitKey, MaintainerKey, Signatures};
pub use dataset::Dataset;
pub use federation::{Defaults, Federation, FederationData, Limits};
pub use gpu_class::GpuClass;
pub use institution::Institution;
pub use priority_class::PriorityClass;
pub use quota::{CohortMembership, GpuHours, PerUser, Quota, QuotaSubject};
pub use reclaim_limit::ReclaimLimit;
pub(crate) use request_template::read_data;
pub use request_template::{
    RequestTemplate, TemplateAmount, TemplateDevices, TemplateField, TemplateGpus, TemplateIsolation, TemplateMembers,
    TemplateNvLink, TemplatePreemption, TemplateRequest, TemplateShare, TemplateTopology,
};
pub use reservation::Reservation;
pub use rule::{Rule, RuleEffect};
pub use schedule::Schedule;
pub use schedule::weekly_window::Window;
pub use tenant::{Tenant, TenantRole};
pub use when::When;

use crate::kind::Kind;
use crate::problem::Place;
use crate::reading::fields::{FieldReader, Fields};
use crate::source::SourceFile;

mod agreement;
mod cluster;
pub(crate) mod commit_key;
mod dataset;
mod federation;
mod gpu_class;
mod institution;
pub(crate) mod on_withdrawal;
mod parties;
mod priority_class;
mod quota;
mod read_expression;
mod reclaim_limit;
mod request_template;
mod reservation;
mod rule;
pub(crate) mod schedule;
mod tenant;
mod when;

/// The reader of one kind's `spec`.
pub(crate) trait Spec: Sized {
    /// The kind of document that `read` reads.
    const KIND: Kind;
    /// Reads all fields and reports every problem. `None` if a required field is missing or invalid.
    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self>;
}

/// The file and line of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceLocation {
    /// Path of the file within the bundle.
    pub file: String,
    /// Line of `metadata.name`, from 1.
    pub line: u32,
}

/// A line of a document that a decision cites.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DocRef {
    /// Kind of the document.
    pub kind: Kind,
    /// Name of the document.
    pub name: String,
    /// Path of its file within the bundle.
    pub file: String,
    /// Line of the deciding field, from 1.
    pub line: u32,
}

impl std::fmt::Display for DocRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({}:{})", self.kind, self.name, self.file, self.line)
    }
}

/// A document: its name, its location and the `spec` of its kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document<T> {
    /// `kind`.
    pub kind: Kind,
    /// `metadata.name`.
    pub name: String,
    /// Its file and line.
    #[serde(rename = "origin")]
    pub location: SourceLocation,
    /// The fields of its kind.
    pub spec: T,
    /// Place of each field, by path within `spec`.
    #[serde(skip)]
    pub(crate) places: BTreeMap<String, Place>,
    /// Place of `metadata.name`.
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
        Self { kind, name, location: SourceLocation { file, line: place.line }, spec, places, place }
    }

    /// Cites the line of a field, or of the document if it lacks the field. `path` is the path within `spec`, such as
    /// `lends[0].maxGpus`.
    #[must_use]
    pub fn cite(&self, path: &str) -> DocRef {
        DocRef {
            kind: self.kind,
            name: self.name.clone(),
            file: self.location.file.clone(),
            line: self.places.get(path).map_or(self.location.line, |place| place.line),
        }
    }

    /// The place of a field, or of the name if the document lacks the field.
    pub(crate) fn place_of(&self, path: &str) -> Place {
        self.places.get(path).copied().unwrap_or(self.place)
    }
}
