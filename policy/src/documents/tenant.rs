//! Tenant: a team, its members, and the classes and origins of its requests.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::LeaseTreatment;
use serde::{Deserialize, Serialize};

use super::Spec;
use super::institution::DEFAULT_WEIGHT;
use super::on_withdrawal::read_on_withdrawal;
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// A team under an institution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// `institution`: the institution it belongs to.
    pub institution: String,
    /// `displayName`: name for people; may be empty.
    pub display_name: String,
    /// `members`: its users, each with one role.
    pub members: BTreeMap<String, TenantRole>,
    /// `weight`: its share within its institution, 1 to 1,000; 100 by default.
    pub weight: u32,
    /// `classes`: the GPU classes it may request.
    pub classes: BTreeSet<String>,
    /// `clusters`: the origins of its requests.
    pub clusters: BTreeSet<String>,
    /// `onWithdrawal`: what becomes of its leases whose class or origin it no longer names; drain by default.
    pub on_withdrawal: LeaseTreatment,
}

/// The role of a member in a tenant. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantRole {
    /// Sees the tenant's requests and leases.
    Viewer,
    /// Submits, cancels, renews and releases, and reads kubeconfigs.
    Submitter,
    /// Does the same with requests and leases of every other member.
    Admin,
}

impl TenantRole {
    /// The role as it appears in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Submitter => "submitter",
            Self::Admin => "admin",
        }
    }
}

impl Spec for Tenant {
    const KIND: Kind = Kind::Tenant;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let institution = fields
            .required("institution", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Institution)));
        let display_name = fields.optional("displayName", reader).and_then(|(path, node)| reader.text(&path, node));
        let mut members = BTreeMap::new();
        if let Some((path, node)) = fields.required("members", reader) {
            reader.require_items(&path, node, "name at least one member");
            reader.list(&path, node, |reader, path, node| {
                let (id, role) = read_member(reader, path, node)?;
                if members.insert(id.clone(), role).is_some() {
                    let message = format!("`{id}` is a member of {} twice", reader.label);
                    reader.problems.at(node.place, ProblemCode::DuplicateName, message, "keep one of them");
                }
                Some(())
            });
        }
        let weight = fields.optional("weight", reader).and_then(|(path, node)| reader.weight(&path, node));
        let classes = fields.required("classes", reader).map(|(path, node)| {
            reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::GpuClass)))
        });
        let clusters = fields.required("clusters", reader).map(|(path, node)| {
            reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::EnrolledCluster))
        });
        let on_withdrawal = read_on_withdrawal(Self::KIND, fields, reader);
        Some(Self {
            institution: institution?,
            display_name: display_name.unwrap_or_default(),
            members,
            weight: weight.unwrap_or(DEFAULT_WEIGHT),
            classes: classes?,
            clusters: clusters?,
            on_withdrawal,
        })
    }
}

fn read_member(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<(String, TenantRole)> {
    let mut fields = Fields::open(node, path, reader)?;
    let id = fields.required("id", reader).and_then(|(path, node)| reader.user_id(&path, node));
    let role = fields.required("role", reader).and_then(|(path, node)| {
        let words = [TenantRole::Viewer, TenantRole::Submitter, TenantRole::Admin].map(|role| (role.as_str(), role));
        reader.word(&path, node, &words)
    });
    fields.finish(reader);
    Some((id?, role?))
}
