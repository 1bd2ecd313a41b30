//! Converts a caller's rights.

use std::collections::BTreeSet;

use comity_policy::{Bundle, TenantRole};
use comity_proto::v1;

use crate::api::authorize::{is_broker_operator, is_maintainer, roles_of};
use crate::api::caller::Caller;

/// Converts to the API message. `bootstrap`: SPIFFE ids that count as maintainers while no bundle is in force.
#[must_use]
pub fn to_proto(caller: &Caller, bundle: Option<&Bundle>, bootstrap: &BTreeSet<String>) -> v1::WhoAmIResponse {
    let (kind, institutions, tenants) = match caller {
        Caller::Cluster(_, cluster, _) => {
            let owner = bundle.and_then(|bundle| bundle.institution_of_cluster(cluster.as_str()));
            let tenants = bundle.zip(owner).map(|(bundle, owner)| tenants_of(bundle, owner)).unwrap_or_default();
            ("cluster", owner.map(str::to_owned).into_iter().collect(), tenants)
        }
        Caller::Broker(_) => ("broker", Vec::new(), Vec::new()),
        Caller::User(..) | Caller::Anonymous => {
            let roles = roles_of(caller, bundle);
            let rights = |(tenant, role): (&String, &TenantRole)| v1::TenantRights {
                tenant: tenant.clone(),
                role: role.as_str().to_owned(),
                may_submit: *role >= TenantRole::Submitter,
            };
            let tenants = roles.tenants.iter().map(rights).collect();
            ("user", roles.institutions_operated.into_iter().collect(), tenants)
        }
    };
    v1::WhoAmIResponse {
        id: caller.name(),
        kind: kind.to_owned(),
        policy_in_force: bundle.is_some(),
        maintainer: is_maintainer(caller, bundle, bootstrap),
        institutions,
        tenants,
        broker_operator: is_broker_operator(caller, bundle, bootstrap),
        planner: roles_of(caller, bundle).planner,
    }
}

/// A cluster acts for every tenant of its institution.
fn tenants_of(bundle: &Bundle, institution: &str) -> Vec<v1::TenantRights> {
    let own = bundle.tenants.iter().filter(|(_, tenant)| tenant.spec.institution == institution);
    own.map(|(name, _)| v1::TenantRights { tenant: name.clone(), role: String::new(), may_submit: true }).collect()
}
