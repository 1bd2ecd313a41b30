//! A compiled bundle: one version of all policy documents, and look-ups in it.

mod changes;
pub(crate) mod cohorts;
mod lookup;
mod reclaim_rules;
mod reservations;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use changes::{BundleChanges, Difference, DocumentChange, FieldChange};
pub use cohorts::CohortPeers;
pub use reclaim_rules::{ReclaimRule, ReclaimScope, ReclaimedLease};

use self::cohorts::CohortIndex;
pub(crate) use self::reservations::index_reservations;
use crate::device::DeviceFacts;
use crate::documents::{
    Agreement, AgreementSides, Cluster, Dataset, Document, Federation, GpuClass, Institution, PriorityClass, Quota,
    RequestTemplate, Reservation, Rule, Schedule, Tenant,
};
use crate::expression::device_context;
use crate::roles::Roles;
use crate::source::BundleSource;

/// A valid bundle. Serialises as its [`BundleSource`]; deserialising compiles it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "BundleSource", try_from = "BundleSource")]
pub struct Bundle {
    pub(crate) source: BundleSource,
    /// SHA-256 over paths and contents of the files, without the commit, in hex.
    pub hash: String,
    /// The only Federation document.
    pub federation: Document<Federation>,
    /// Institutions by name.
    pub institutions: BTreeMap<String, Document<Institution>>,
    /// Donor terms by cluster id.
    pub clusters: BTreeMap<String, Document<Cluster>>,
    /// Tenants by name.
    pub tenants: BTreeMap<String, Document<Tenant>>,
    /// GPU classes by name.
    pub classes: BTreeMap<String, Document<GpuClass>>,
    /// Quotas by name.
    pub quotas: BTreeMap<String, Document<Quota>>,
    /// Agreements by name.
    pub agreements: BTreeMap<String, Document<Agreement>>,
    /// Priority classes by name.
    pub priorities: BTreeMap<String, Document<PriorityClass>>,
    /// Request templates by name.
    pub templates: BTreeMap<String, Document<RequestTemplate>>,
    /// Schedules by name.
    pub schedules: BTreeMap<String, Document<Schedule>>,
    /// Reservations by name.
    pub reservations: BTreeMap<String, Document<Reservation>>,
    /// Rules by name.
    pub rules: BTreeMap<String, Document<Rule>>,
    /// Datasets by name.
    pub datasets: BTreeMap<String, Document<Dataset>>,
    /// Institution that may enrol each cluster, by cluster id.
    pub(crate) institution_by_cluster: BTreeMap<String, String>,
    /// Roles by user id.
    pub(crate) roles: BTreeMap<String, Roles>,
    /// Names of the quotas that limit each tenant, directly or through its institution.
    pub(crate) quotas_by_tenant: BTreeMap<String, Vec<String>>,
    /// Names of the reservations at each cluster that has some.
    pub(crate) reservations_by_cluster: BTreeMap<String, Vec<String>>,
    /// The cohorts of quotas.
    pub(crate) cohorts: Arc<CohortIndex>,
    /// The agreements under which each institution may borrow, by name.
    pub(crate) agreements_by_borrower: BTreeMap<String, Vec<NumberedAgreement>>,
    /// The number of each institution in [`NumberedAgreement`].
    pub(crate) institution_numbers: BTreeMap<String, u32>,
    /// Names of the GPU classes, by descending rank, then by name.
    pub(crate) classes_by_rank: Vec<String>,
}

/// An agreement in an index. An institution may have hundreds, and each decision goes through them.
#[derive(Clone, Debug)]
pub(crate) struct NumberedAgreement {
    pub(crate) name: String,
    /// Numbers of the institutions that lend, in ascending order.
    lenders: Arc<[u32]>,
}

impl NumberedAgreement {
    /// Whether the institution with a number lends.
    pub(crate) fn has_lender(&self, number: u32) -> bool {
        self.lenders.binary_search(&number).is_ok()
    }
}

/// Numbers the institutions, and indexes the agreements by borrower.
pub(crate) fn index_agreements(
    institutions: &BTreeMap<String, Document<Institution>>,
    agreements: &BTreeMap<String, Document<Agreement>>,
) -> (BTreeMap<String, u32>, BTreeMap<String, Vec<NumberedAgreement>>) {
    let numbers: BTreeMap<String, u32> = institutions.keys().cloned().zip(0..).collect();
    let mut by_borrower = BTreeMap::<String, Vec<NumberedAgreement>>::new();
    for agreement in agreements.values() {
        let (borrowers, lenders) = match &agreement.spec.sides {
            AgreementSides::Mutual(parties) => (parties, parties),
            AgreementSides::OneWay { borrowers, lenders } => (borrowers, lenders),
        };
        // Names and numbers have the same order.
        let lenders: Arc<[u32]> = lenders.iter().filter_map(|lender| numbers.get(lender).copied()).collect();
        for borrower in borrowers {
            let entry = NumberedAgreement { name: agreement.name.clone(), lenders: Arc::clone(&lenders) };
            by_borrower.entry(borrower.clone()).or_default().push(entry);
        }
    }
    (numbers, by_borrower)
}

impl Bundle {
    /// The files of the bundle, by path.
    #[must_use]
    pub fn source(&self) -> &BundleSource {
        &self.source
    }

    /// The Git commit of the files, if known.
    #[must_use]
    pub fn commit(&self) -> Option<&str> {
        self.source.commit.as_deref()
    }

    /// The number of documents.
    #[must_use]
    pub fn document_count(&self) -> usize {
        1 + self.institutions.len()
            + self.clusters.len()
            + self.tenants.len()
            + self.classes.len()
            + self.quotas.len()
            + self.agreements.len()
            + self.priorities.len()
            + self.templates.len()
            + self.schedules.len()
            + self.reservations.len()
            + self.rules.len()
            + self.datasets.len()
    }

    /// The institution that may enrol a cluster; `None` if none may.
    #[must_use]
    pub fn institution_of_cluster(&self, cluster: &str) -> Option<&str> {
        self.institution_by_cluster.get(cluster).map(String::as_str)
    }

    /// The institution that a tenant belongs to.
    #[must_use]
    pub fn institution_of_tenant(&self, tenant: &str) -> Option<&str> {
        self.tenants.get(tenant).map(|tenant| tenant.spec.institution.as_str())
    }

    /// Pairs of cluster and institution: every cluster that may be enrolled.
    pub fn enrollable_clusters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.institution_by_cluster.iter().map(|(cluster, institution)| (cluster.as_str(), institution.as_str()))
    }

    /// The priority class of requests that name none.
    #[must_use]
    pub fn default_priority(&self) -> Option<&str> {
        self.priorities.values().find(|class| class.spec.default).map(|class| class.name.as_str())
    }

    /// The value of a priority class: 0 without a class, and for one that no longer exists.
    #[must_use]
    pub fn priority_value(&self, class: Option<&str>) -> u32 {
        class.and_then(|class| self.priorities.get(class)).map_or(0, |class| class.spec.value)
    }

    /// The request templates that a tenant is offered, by name; none for an unknown tenant.
    pub fn templates_offered_to(&self, tenant: &str) -> impl Iterator<Item = &Document<RequestTemplate>> {
        let institution = self.institution_of_tenant(tenant);
        self.templates.values().filter(move |template| {
            institution.is_some_and(|institution| template.spec.is_offered_to(tenant, institution))
        })
    }

    /// Notice before a reclaimed lease on this cluster ends, in milliseconds.
    #[must_use]
    pub fn reclaim_grace_ms(&self, cluster: &str) -> u64 {
        self.clusters
            .get(cluster)
            .and_then(|cluster| cluster.spec.reclaim_grace_ms)
            .unwrap_or(self.federation.spec.defaults.reclaim_grace_ms)
    }

    /// Idle time after which a lease of a tenant and class is released, in milliseconds: the shortest that the
    /// federation or a quota sets.
    #[must_use]
    pub fn idle_release_ms(&self, tenant: &str, class: &str) -> Option<u64> {
        let quotas = self.quotas_of(tenant).map(|quota| &quota.spec);
        let covering = quotas.filter(|quota| quota.covers_class(class));
        let federation = self.federation.spec.limits.idle_release_ms;
        covering.filter_map(|quota| quota.idle_release_ms).chain(federation).min()
    }

    /// The class of a device: the highest-ranked class that matches it; with equal ranks, the first by name.
    #[must_use]
    pub fn class_of(&self, device: &DeviceFacts) -> Option<&str> {
        self.classes_of(device).into_iter().next()
    }

    /// All classes that match a device, by descending rank.
    #[must_use]
    pub fn classes_of(&self, device: &DeviceFacts) -> Vec<&str> {
        let context = device_context(device);
        self.classes_by_rank
            .iter()
            .filter(|name| self.classes.get(*name).is_some_and(|class| class.spec.selector.matches_in(&context)))
            .map(String::as_str)
            .collect()
    }

    /// The roles of a user; empty for an id that no document names.
    #[must_use]
    pub fn roles_of(&self, spiffe_id: &str) -> Roles {
        self.roles.get(spiffe_id).cloned().unwrap_or_default()
    }

    /// Whether a user may invite a cluster, as a federation admin or as an operator of the institution that may enrol
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

    /// Whether a user may invite another, by name: a maintainer, and for a broker operator another one. Otherwise a
    /// maintainer could get the certificate of somebody who may invite brokers.
    #[must_use]
    pub fn may_invite_user(&self, spiffe_id: &str, name: &str) -> bool {
        let inviter = self.roles_of(spiffe_id);
        inviter.federation_admin && (inviter.broker_operator || !self.operates_brokers(name))
    }

    /// Whether the user of this name is a broker operator.
    #[must_use]
    pub fn operates_brokers(&self, name: &str) -> bool {
        self.roles_of(&format!("spiffe://{}/user/{name}", self.federation.spec.trust_domain)).broker_operator
    }
}

impl PartialEq for Bundle {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Bundle {}

impl From<Bundle> for BundleSource {
    fn from(bundle: Bundle) -> Self {
        bundle.source
    }
}
