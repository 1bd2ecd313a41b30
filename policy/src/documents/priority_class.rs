//! PriorityClass: a named rank in the queue and its permitted users.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Spec;
use super::parties::{Parties, include};
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};

/// The largest `value`. As in Kubernetes, larger values are not for users.
const MAX_VALUE: u64 = 1_000_000_000;

/// A rank in the queue: requests with a higher value go first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClass {
    /// `description`: for people; may be empty.
    pub description: String,
    /// `value`: the rank, 0 to 1,000,000,000. Requests without a class have 0.
    pub value: u32,
    /// `mayPreempt`: whether its requests may preempt preemptible leases of lower value.
    pub may_preempt: bool,
    /// `default`: whether it applies to requests that name no class. At most one class of a bundle is the default.
    pub default: bool,
    /// `usedBy.institutions`: institutions whose tenants may use it. If `used_by_tenants` is empty too: everyone.
    pub used_by_institutions: BTreeSet<String>,
    /// `usedBy.tenants`: single tenants that may use it.
    pub used_by_tenants: BTreeSet<String>,
}

impl PriorityClass {
    /// Whether a tenant of an institution may use it.
    #[must_use]
    pub fn serves(&self, tenant: &str, institution: &str) -> bool {
        include(&self.used_by_institutions, &self.used_by_tenants, tenant, institution)
    }
}

impl Spec for PriorityClass {
    const KIND: Kind = Kind::PriorityClass;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        let value = fields.required("value", reader).and_then(|(path, node)| reader.number(&path, node, 0, MAX_VALUE));
        let may_preempt = fields.optional("mayPreempt", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let default = fields.optional("default", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let used_by = fields.optional("usedBy", reader);
        if let (Some(true), Some((path, node))) = (default, &used_by) {
            let message = format!("{} is the default, but its `{path}` keeps some tenants from using it", reader.label);
            let remedy = "remove `usedBy`, or make another class the default";
            reader.problems.at(node.place, ProblemCode::Contradiction, message, remedy);
        }
        let used_by = used_by.and_then(|(path, node)| Parties::read(&path, node, reader));
        let used_by = used_by.unwrap_or_default();
        Some(Self {
            description: description.unwrap_or_default(),
            value: u32::try_from(value?).ok()?,
            may_preempt: may_preempt.unwrap_or(false),
            default: default.unwrap_or(false),
            used_by_institutions: used_by.institutions,
            used_by_tenants: used_by.tenants,
        })
    }
}
