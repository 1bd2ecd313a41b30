//! The roles of a user and the actions they permit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::documents::TenantRole;

/// The roles of one user. The default has none, which denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Roles {
    /// Whether the user maintains the federation: invites any cluster, applies policy and sees everything.
    pub federation_admin: bool,
    /// Whether the user operates the brokers: may invite brokers, and people who operate them.
    pub broker_operator: bool,
    /// Whether the user may plan policy.
    pub planner: bool,
    /// Names of the institutions whose clusters the user may invite and list.
    pub institutions_operated: BTreeSet<String>,
    /// The user's role in each tenant.
    pub tenants: BTreeMap<String, TenantRole>,
}

impl Roles {
    /// Whether the user has no role at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the user has `role` or a higher one in a tenant. A federation admin has none unless a tenant lists them.
    #[must_use]
    pub fn has_tenant_role(&self, tenant: &str, role: TenantRole) -> bool {
        self.tenants.get(tenant).is_some_and(|held| *held >= role)
    }

    /// Whether the user may see a tenant's requests and leases.
    #[must_use]
    pub fn may_view(&self, tenant: &str) -> bool {
        self.federation_admin || self.has_tenant_role(tenant, TenantRole::Viewer)
    }

    /// Whether the user may submit requests for a tenant.
    #[must_use]
    pub fn may_submit(&self, tenant: &str) -> bool {
        self.has_tenant_role(tenant, TenantRole::Submitter)
    }
}
