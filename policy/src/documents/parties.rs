//! Institutions and tenants that a field such as `to` or `usedBy` lists.

use std::collections::BTreeSet;

use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// The names in `institutions` and `tenants` of one field.
#[derive(Default)]
pub(super) struct Parties {
    pub(super) institutions: BTreeSet<String>,
    pub(super) tenants: BTreeSet<String>,
}

impl Parties {
    /// Reads the field and reports it if it names nobody, which would otherwise mean everybody.
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let institutions = references(&mut fields, "institutions", Kind::Institution, reader);
        let tenants = references(&mut fields, "tenants", Kind::Tenant, reader);
        fields.finish(reader);
        if institutions.is_empty() && tenants.is_empty() {
            let message = format!("`{path}` of {} names nobody", reader.label);
            let field = path.rsplit('.').next().unwrap_or(path);
            let remedy = format!("name institutions or tenants, or remove `{field}`");
            reader.problems.at(node.place, ProblemCode::MissingField, message, remedy);
        }
        Some(Self { institutions, tenants })
    }
}

/// Whether a tenant of an institution is among those whom a field names, or the field is left out, which means everybody.
pub(super) fn include(
    institutions: &BTreeSet<String>,
    tenants: &BTreeSet<String>,
    tenant: &str,
    institution: &str,
) -> bool {
    institutions.is_empty() && tenants.is_empty() || tenants.contains(tenant) || institutions.contains(institution)
}

fn references(
    fields: &mut Fields<'_>,
    name: &'static str,
    kind: Kind,
    reader: &mut FieldReader<'_, '_>,
) -> BTreeSet<String> {
    let Some((path, node)) = fields.optional(name, reader) else {
        return BTreeSet::new();
    };
    reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(kind)))
}
