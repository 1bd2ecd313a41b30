//! What a caller may see.

use std::collections::BTreeSet;

use comity_policy::Bundle;
use comity_types::{ClusterId, TenantId};

use crate::api::authorize::roles_of;
use crate::api::caller::Caller;

/// The objects that a caller may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Viewer {
    /// Sees everything.
    all: bool,
    /// Requests and leases of these tenants.
    tenants: BTreeSet<TenantId>,
    /// These clusters with their peerings, and the leases they borrow or lend.
    clusters: BTreeSet<ClusterId>,
    /// Clusters whose summaries and peerings are visible, but not their leases: those that a user's tenants belong
    /// with.
    related: BTreeSet<ClusterId>,
    /// Sees the sums of all offers.
    offers: bool,
}

impl Viewer {
    /// View of `caller` under `bundle`.
    #[must_use]
    pub fn of(caller: &Caller, bundle: Option<&Bundle>) -> Self {
        if let Caller::Cluster(_, cluster, _) = caller {
            return Self { clusters: BTreeSet::from([cluster.clone()]), ..Self::default() };
        }
        let (roles, Some(bundle)) = (roles_of(caller, bundle), bundle) else { return Self::default() };
        let institutions_of_tenants: BTreeSet<&str> = roles
            .tenants
            .keys()
            .filter_map(|tenant| bundle.tenants.get(tenant))
            .map(|tenant| tenant.spec.institution.as_str())
            .collect();
        let clusters_of = |is_theirs: &dyn Fn(&str) -> bool| -> BTreeSet<ClusterId> {
            bundle
                .enrollable_clusters()
                .filter(|(_, institution)| is_theirs(institution))
                .filter_map(|(cluster, _)| ClusterId::parse(cluster, "cluster").ok())
                .collect()
        };
        Self {
            all: roles.federation_admin,
            tenants: roles.tenants.keys().filter_map(|tenant| TenantId::parse(tenant, "tenant").ok()).collect(),
            clusters: clusters_of(&|institution| roles.institutions_operated.contains(institution)),
            related: clusters_of(&|institution| institutions_of_tenants.contains(institution)),
            offers: !roles.is_empty(),
        }
    }

    /// Whether a cluster's summary may be seen.
    #[must_use]
    pub fn sees_cluster(&self, cluster: &ClusterId) -> bool {
        self.all || self.clusters.contains(cluster) || self.related.contains(cluster)
    }

    /// Whether an offer may be seen, summed up.
    #[must_use]
    pub fn sees_offer(&self, cluster: &ClusterId) -> bool {
        self.offers || self.sees_cluster(cluster)
    }

    /// Whether an offer may be seen node by node.
    #[must_use]
    pub fn sees_nodes(&self, cluster: &ClusterId) -> bool {
        self.all || self.clusters.contains(cluster)
    }

    /// Whether a request may be seen.
    #[must_use]
    pub fn sees_request(&self, tenant: &TenantId, origin: &ClusterId) -> bool {
        self.all || self.tenants.contains(tenant) || self.clusters.contains(origin)
    }

    /// Whether a lease may be seen.
    #[must_use]
    pub fn sees_lease(&self, tenant: &TenantId, origin: &ClusterId, donor: &ClusterId) -> bool {
        self.sees_request(tenant, origin) || self.clusters.contains(donor)
    }

    /// Whether a peering may be seen.
    #[must_use]
    pub fn sees_peering(&self, origin: &ClusterId, donor: &ClusterId) -> bool {
        self.sees_cluster(origin) || self.sees_cluster(donor)
    }
}
