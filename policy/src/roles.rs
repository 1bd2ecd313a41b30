//! What a user may do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bundle::Bundle;
use crate::documents::TenantRole;

/// The roles of one user. The default is none at all: default deny.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Roles {
    /// A maintainer of the federation: may invite any cluster, apply policy and see everything.
    pub federation_admin: bool,
    /// Institutions whose clusters the user may invite and list.
    pub institutions_operated: BTreeSet<String>,
    /// The user's role in each tenant.
    pub tenants: BTreeMap<String, TenantRole>,
}

impl Roles {
    /// Whether the user has no role.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.federation_admin && self.institutions_operated.is_empty() && self.tenants.is_empty()
    }

    /// Whether the user has this role, or a higher one, in a tenant. A federation admin does not act for tenants.
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

impl Bundle {
    /// Whether a user may invite a cluster: as a federation admin, or as an operator of the institution that may enrol
    /// it.
    #[must_use]
    pub fn may_invite(&self, spiffe_id: &str, cluster: &str) -> bool {
        let Some(owner) = self.institution_of_cluster(cluster) else {
            return false;
        };
        self.roles
            .get(spiffe_id)
            .is_some_and(|roles| roles.federation_admin || roles.institutions_operated.contains(owner))
    }
}
