//! The limits on reclaims that cover a lease.

use crate::bundle::Bundle;
use crate::documents::{Document, Quota, QuotaSubject, ReclaimLimit};

/// A lease, as far as limits on reclaims see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimedLease<'a> {
    /// The donor.
    pub donor: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The class that it is charged to.
    pub class: &'a str,
}

/// The leases that a limit on reclaims counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReclaimScope<'a> {
    /// Those of a donor, by `maxReclaims` of its Cluster document or of the federation's defaults.
    Donor(&'a str),
    /// Those of a tenant, by `limits.maxReclaimsPerTenant` of the Federation.
    Tenant(&'a str),
    /// Those that a Quota document covers.
    Quota(&'a str),
}

/// A limit and the leases that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimRule<'a> {
    /// The leases.
    pub scope: ReclaimScope<'a>,
    /// The limit.
    pub limit: ReclaimLimit,
}

impl Bundle {
    /// The limits on reclaims that cover a lease.
    #[must_use]
    pub fn reclaim_rules<'a>(&'a self, lease: &ReclaimedLease<'a>) -> Vec<ReclaimRule<'a>> {
        let own = self.clusters.get(lease.donor).and_then(|cluster| cluster.spec.max_reclaims);
        let donor = own.or(self.federation.spec.defaults.max_reclaims);
        let tenant = self.federation.spec.limits.max_reclaims_per_tenant;
        let rule = |scope| move |limit| ReclaimRule { scope, limit };
        let quotas = self.quotas_of(lease.tenant).filter(|quota| quota.spec.covers_class(lease.class));
        let of_quota = |quota: &'a Document<Quota>| quota.spec.max_reclaims.map(rule(ReclaimScope::Quota(&quota.name)));
        let broad =
            [donor.map(rule(ReclaimScope::Donor(lease.donor))), tenant.map(rule(ReclaimScope::Tenant(lease.tenant)))];
        broad.into_iter().flatten().chain(quotas.filter_map(of_quota)).collect()
    }

    /// Whether a limit counts a lease.
    #[must_use]
    pub fn counts_reclaim(&self, scope: ReclaimScope<'_>, lease: &ReclaimedLease<'_>) -> bool {
        match scope {
            ReclaimScope::Donor(donor) => donor == lease.donor,
            ReclaimScope::Tenant(tenant) => tenant == lease.tenant,
            ReclaimScope::Quota(name) => self.quotas.get(name).is_some_and(|quota| {
                let is_subject = match &quota.spec.subject {
                    QuotaSubject::Tenant(tenant) => tenant == lease.tenant,
                    QuotaSubject::Institution(institution) => {
                        self.tenants.get(lease.tenant).is_some_and(|tenant| tenant.spec.institution == *institution)
                    }
                };
                is_subject && quota.spec.covers_class(lease.class)
            }),
        }
    }
}
