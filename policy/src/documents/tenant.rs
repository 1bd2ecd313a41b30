//! Tenant: a team, its members and what it may ask for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Spec;
use super::institution::DEFAULT_WEIGHT;
use crate::fields::{Context, Fields, Target};
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::yaml::Node;

/// A team under an institution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// `institution`: whom it belongs to.
    pub institution: String,
    /// `displayName`: the name people know it by; may be empty.
    pub display_name: String,
    /// `members`: its users, each with one role.
    pub members: BTreeMap<String, TenantRole>,
    /// `weight`: its share within its institution, 1 to 1,000; 100 where not given.
    pub weight: u32,
    /// `classes`: the classes of GPUs it may ask for.
    pub classes: BTreeSet<String>,
    /// `clusters`: the origins it may send requests from.
    pub clusters: BTreeSet<String>,
}

/// What a member may do for a tenant; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantRole {
    /// Sees the tenant's requests and leases.
    Viewer,
    /// Submits, cancels, renews and releases, and reads kubeconfigs.
    Submitter,
    /// Does the same for requests and leases of every other member.
    Admin,
}

impl TenantRole {
    /// The role as documents write it.
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

    fn read(fields: &mut Fields<'_>, context: &mut Context<'_, '_>) -> Option<Self> {
        let institution = fields
            .required("institution", context)
            .and_then(|(path, node)| context.reference(&path, node, Target::Document(Kind::Institution)));
        let display_name = fields.optional("displayName", context).and_then(|(path, node)| context.text(&path, node));
        let mut members = BTreeMap::new();
        if let Some((path, node)) = fields.required("members", context) {
            context.not_empty(&path, node, "name at least one member");
            context.list(&path, node, |context, path, node| {
                let (id, role) = member(context, path, node)?;
                if members.insert(id.clone(), role).is_some() {
                    let message = format!("`{id}` is a member of {} twice", context.label);
                    context.problems.at(node.place, ProblemCode::DuplicateName, message, "keep one of them");
                }
                Some(())
            });
        }
        let weight = fields.optional("weight", context).and_then(|(path, node)| context.weight(&path, node));
        let classes = fields.required("classes", context).map(|(path, node)| {
            context
                .set(&path, node, |context, path, node| context.reference(path, node, Target::Document(Kind::GpuClass)))
        });
        let clusters = fields.required("clusters", context).map(|(path, node)| {
            context.set(&path, node, |context, path, node| context.reference(path, node, Target::EnrolledCluster))
        });
        Some(Self {
            institution: institution?,
            display_name: display_name.unwrap_or_default(),
            members,
            weight: weight.unwrap_or(DEFAULT_WEIGHT),
            classes: classes?,
            clusters: clusters?,
        })
    }
}

fn member(context: &mut Context<'_, '_>, path: &str, node: &Node) -> Option<(String, TenantRole)> {
    let mut fields = Fields::open(node, path, context)?;
    let id = fields.required("id", context).and_then(|(path, node)| context.user_id(&path, node));
    let role = fields.required("role", context).and_then(|(path, node)| {
        let words = [TenantRole::Viewer, TenantRole::Submitter, TenantRole::Admin].map(|role| (role.as_str(), role));
        context.word(&path, node, &words)
    });
    fields.finish(context);
    Some((id?, role?))
}
