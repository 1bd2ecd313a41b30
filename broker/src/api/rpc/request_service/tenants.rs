//! The tenants whose templates and quotas a caller sees.

use comity_core::Refusal;
use comity_policy::Bundle;

use crate::api::authorize::roles_of;
use crate::api::caller::Caller;

/// The tenants for which a caller sees templates, with their institutions: a user's own, those of the institutions that
/// it operates, all for a maintainer; a cluster's, those of its institution. With `only`, this one of them.
pub(super) fn tenants_of<'b>(
    caller: &Caller,
    bundle: &'b Bundle,
    only: &str,
) -> Result<Vec<(&'b str, &'b str)>, Refusal> {
    let roles = roles_of(caller, Some(bundle));
    let own = caller.cluster().and_then(|cluster| bundle.institution_of_cluster(cluster.as_str()));
    let is_visible = |tenant: &str, institution: &str| {
        roles.may_view(tenant) || roles.institutions_operated.contains(institution) || own == Some(institution)
    };
    let all = bundle.tenants.values().map(|tenant| (tenant.name.as_str(), tenant.spec.institution.as_str()));
    let visible = all.filter(|(tenant, institution)| is_visible(tenant, institution));
    let tenants: Vec<(&str, &str)> = visible.filter(|(tenant, _)| only.is_empty() || *tenant == only).collect();
    if tenants.is_empty() && !only.is_empty() {
        return Err(Refusal::not_found("tenant", only, "tenant"));
    }
    Ok(tenants)
}
