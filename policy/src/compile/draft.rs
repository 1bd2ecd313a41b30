//! The documents of a bundle before they are checked against each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::documents::{
    Agreement, Cluster, Dataset, Document, Federation, GpuClass, Institution, PriorityClass, Quota, RequestTemplate,
    Reservation, Rule, Schedule, Tenant,
};
use crate::kind::Kind;
use crate::problem::Place;
use crate::reading::fields::{Reference, UserIdUse, ZoneUse};

/// All readable documents, and the names that they must agree on.
#[derive(Default)]
pub(crate) struct Draft {
    /// Place of the name of every document, including those with an unreadable `spec`.
    pub(crate) declared: BTreeMap<(Kind, String), Place>,
    /// Kinds with an unreadable document. The names that such a document declares are unknown.
    pub(crate) unreadable: BTreeSet<Kind>,
    pub(crate) federations: Vec<Document<Federation>>,
    pub(crate) institutions: BTreeMap<String, Document<Institution>>,
    pub(crate) clusters: BTreeMap<String, Document<Cluster>>,
    pub(crate) tenants: BTreeMap<String, Document<Tenant>>,
    pub(crate) classes: BTreeMap<String, Document<GpuClass>>,
    pub(crate) quotas: BTreeMap<String, Document<Quota>>,
    pub(crate) agreements: BTreeMap<String, Document<Agreement>>,
    pub(crate) priorities: BTreeMap<String, Document<PriorityClass>>,
    pub(crate) templates: BTreeMap<String, Document<RequestTemplate>>,
    pub(crate) schedules: BTreeMap<String, Document<Schedule>>,
    pub(crate) reservations: BTreeMap<String, Document<Reservation>>,
    pub(crate) rules: BTreeMap<String, Document<Rule>>,
    pub(crate) datasets: BTreeMap<String, Document<Dataset>>,
    pub(crate) references: Vec<Reference>,
    pub(crate) user_ids: Vec<UserIdUse>,
    pub(crate) zones: Vec<ZoneUse>,
}

impl Draft {
    /// Records a document that is not valid YAML. An unknown kind marks every kind as unreadable.
    pub(super) fn record_invalid(&mut self, kind: Option<&str>, name: Option<(String, Place)>) {
        let kind = Kind::ALL.into_iter().find(|known| Some(known.as_str()) == kind);
        match kind {
            Some(kind) => drop(self.unreadable.insert(kind)),
            None => self.unreadable.extend(Kind::ALL),
        }
        if let (Some(kind), Some((name, place))) = (kind, name) {
            self.declared.entry((kind, name)).or_insert(place);
        }
    }
}
