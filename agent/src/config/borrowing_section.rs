//! Checks the section `borrowing` of the agent's configuration.

use comity_agent_model::local_policy::borrowing_policy::BorrowingPolicy;
use comity_agent_model::settings::SettingChecks;
use comity_types::is_dns_label;

/// Most names in one list.
const MAX_NAMES: usize = 1_024;

pub(super) fn check(policy: &BorrowingPolicy, checks: &mut SettingChecks) {
    for (field, names) in [
        ("borrowing.allowedDonors", &policy.allowed_donors),
        ("borrowing.deniedDonors", &policy.denied_donors),
        ("borrowing.allowedInstitutions", &policy.allowed_institutions),
        ("borrowing.deniedInstitutions", &policy.denied_institutions),
        ("borrowing.allowedTenants", &policy.allowed_tenants),
    ] {
        if names.len() > MAX_NAMES {
            checks.refuse(field, names.len(), format!("name at most {MAX_NAMES}; leave it out for all"));
        }
        if let Some(name) = names.iter().find(|name| !is_dns_label(name)) {
            checks.refuse(field, name, "write names as policy has them: lower-case letters, digits and '-'");
        }
    }
    let field = "borrowing.namespaceDonors";
    if policy.namespace_donors.len() > MAX_NAMES {
        checks.refuse(field, policy.namespace_donors.len(), format!("name at most {MAX_NAMES} namespaces"));
    }
    for (namespace, donors) in &policy.namespace_donors {
        if let Some(name) = std::iter::once(namespace).chain(donors).find(|name| !is_dns_label(name)) {
            let reason = "write names of namespaces, each with its clusters, as in {team-a: [north]}";
            checks.refuse(field, name, reason);
        }
    }
}
