//! RequestTemplate: an entry of the catalogue from which people request GPUs without describing each field.

mod template_data;
mod template_field;
mod template_gpus;
mod template_request;
mod template_topology;

use std::collections::BTreeSet;

use serde::Serialize;

pub(crate) use template_data::read_data;
pub use template_field::TemplateField;
pub use template_gpus::{TemplateAmount, TemplateDevices, TemplateGpus, TemplateIsolation, TemplateShare};
pub use template_request::{TemplateMembers, TemplatePreemption, TemplateRequest};
pub(super) use template_topology::read_flag;
pub use template_topology::{TemplateNvLink, TemplateTopology};

use super::Spec;
use super::parties::{Parties, include};
use crate::kind::Kind;
use crate::limits::{MAX_TEMPLATE_DESCRIPTION_CHARS, MAX_TEMPLATE_TITLE_CHARS};
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::{Node, Value};

/// A catalogue entry. It grants nothing: a request made from it is checked as any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestTemplate {
    /// `title`: its name for people, at most 60 characters.
    pub title: String,
    /// `description`: what it is good for, at most 256 characters; may be empty.
    pub description: String,
    /// `category`: the part of the catalogue that it belongs to; may be empty.
    pub category: String,
    /// `request`: the fields that it sets.
    pub request: TemplateRequest,
    /// `mayOverride`: those of its fields that a request may set to another value.
    pub may_override: BTreeSet<TemplateField>,
    /// `offeredTo.institutions`: institutions whose tenants are offered it. If `offered_to_tenants` is empty too:
    /// everyone.
    pub offered_to_institutions: BTreeSet<String>,
    /// `offeredTo.tenants`: single tenants that are offered it.
    pub offered_to_tenants: BTreeSet<String>,
}

impl RequestTemplate {
    /// Whether a tenant of an institution is offered it.
    #[must_use]
    pub fn is_offered_to(&self, tenant: &str, institution: &str) -> bool {
        include(&self.offered_to_institutions, &self.offered_to_tenants, tenant, institution)
    }
}

impl Spec for RequestTemplate {
    const KIND: Kind = Kind::RequestTemplate;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let title = fields.required("title", reader).and_then(|(path, node)| {
            let title = one_line(&path, node, MAX_TEMPLATE_TITLE_CHARS, reader)?;
            if title.is_empty() {
                let message = format!("`{path}` of {} is empty", reader.label);
                reader.problems.at(
                    node.place,
                    ProblemCode::MissingField,
                    message,
                    "write for example `Notebook, small`",
                );
                return None;
            }
            Some(title)
        });
        let description = fields
            .optional("description", reader)
            .and_then(|(path, node)| one_line(&path, node, MAX_TEMPLATE_DESCRIPTION_CHARS, reader));
        let category = fields
            .optional("category", reader)
            .and_then(|(path, node)| one_line(&path, node, MAX_TEMPLATE_TITLE_CHARS, reader));
        let request =
            fields.required("request", reader).and_then(|(path, node)| TemplateRequest::read(&path, node, reader));
        let may_override = fields.optional("mayOverride", reader).map(|(path, node)| {
            reader.set(&path, node, |reader, path, node| {
                if report_fixed(node, reader) {
                    return None;
                }
                let field = reader.word(path, node, &TemplateField::WORDS)?;
                if let Some(request) = request.as_ref().filter(|request| !request.sets(field)) {
                    report_unset(field, request, node, reader);
                }
                Some(field)
            })
        });
        let offered_to =
            fields.optional("offeredTo", reader).and_then(|(path, node)| Parties::read(&path, node, reader));
        let offered_to = offered_to.unwrap_or_default();
        Some(Self {
            title: title?,
            description: description.unwrap_or_default(),
            category: category.unwrap_or_default(),
            request: request?,
            may_override: may_override.unwrap_or_default(),
            offered_to_institutions: offered_to.institutions,
            offered_to_tenants: offered_to.tenants,
        })
    }
}

/// Fields that a request cannot set to another value than its template, because they have only one beside their default.
const FIXED: [&str; 5] =
    ["topology.sameNode", "topology.wholeNode", "topology.numa", "topology.spreadNodes", "spreadDonors"];

/// Reports a field in `mayOverride` that no request could override; whether it is one.
fn report_fixed(node: &Node, reader: &mut FieldReader<'_, '_>) -> bool {
    let Value::Scalar { text, .. } = &node.value else { return false };
    let Some(field) = FIXED.into_iter().find(|field| field == text) else { return false };
    let message = format!("`mayOverride` of {} names `{field}`, which no request can turn off", reader.label);
    let remedy = format!("remove it here; to leave `{field}` to requests, remove it from `request`");
    reader.problems.at(node.place, ProblemCode::InvalidValue, message, remedy);
    true
}

/// Reports a field in `mayOverride` that the template leaves to requests.
fn report_unset(field: TemplateField, request: &TemplateRequest, node: &Node, reader: &mut FieldReader<'_, '_>) {
    let set: Vec<String> =
        TemplateField::ALL.into_iter().filter(|it| request.sets(*it)).map(|it| format!("`{it}`")).collect();
    let message = format!("`mayOverride` of {} names `{field}`, which its `request` does not set", reader.label);
    let remedy = format!("a request may set that field anyway: remove it here; `request` sets {}", set.join(", "));
    reader.problems.at(node.place, ProblemCode::Contradiction, message, remedy);
}

/// Text on one line, of bounded length.
fn one_line(path: &str, node: &Node, most: usize, reader: &mut FieldReader<'_, '_>) -> Option<String> {
    let text = reader.text(path, node)?;
    let problem = if text.contains('\n') {
        Some("has several lines")
    } else if text.chars().count() > most {
        Some("is too long")
    } else {
        None
    };
    if let Some(problem) = problem {
        let message = format!("`{path}: {}` of {} {problem}", shorten(&text), reader.label);
        let remedy = format!("write at most {most} characters on one line");
        reader.problems.at(node.place, ProblemCode::TooLarge, message, remedy);
        return None;
    }
    Some(text)
}
