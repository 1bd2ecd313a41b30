//! The cohorts of a bundle: which quotas lend each other what they do not use.
//!
//! The model is that of Kueue's ClusterQueues. Of its nominal quota, a member keeps some for itself and lends the rest:
//! all that members lend is the *shared quota* of their cohort. What a member uses beyond its own part comes out of the
//! shared quota, whether it is within its nominal quota or borrows. So all members together never use more than the sum
//! of their nominal quotas.

use std::collections::{BTreeMap, BTreeSet};

use super::Bundle;
use crate::documents::{DocRef, Document, Quota, QuotaSubject};

/// A quota in a cohort.
#[derive(Clone, Debug)]
pub(crate) struct CohortMember {
    pub(crate) cohort: String,
    subject: QuotaSubject,
    classes: BTreeSet<String>,
    /// The part of its nominal quota that it does not lend, in milli-GPU.
    pub(crate) own_milli: u64,
    /// Its nominal quota, in milli-GPU.
    nominal_milli: u64,
}

impl CohortMember {
    pub(crate) fn covers_class(&self, class: &str) -> bool {
        self.classes.is_empty() || self.classes.contains(class)
    }

    pub(crate) const fn subject(&self) -> &QuotaSubject {
        &self.subject
    }

    /// Whether it counts a lease of a tenant, whose institution was this one at the grant.
    pub(crate) fn counts(&self, tenant: &str, institution: &str, class: &str) -> bool {
        let is_subject = match &self.subject {
            QuotaSubject::Tenant(subject) => subject == tenant,
            QuotaSubject::Institution(subject) => subject == institution,
        };
        is_subject && self.covers_class(class)
    }

    /// What a use takes of the shared quota, in milli-GPU.
    pub(crate) const fn shared_part(&self, used_milli: u64) -> u64 {
        used_milli.saturating_sub(self.own_milli)
    }

    /// What a use leaves of the nominal quota, in milli-GPU.
    pub(crate) const fn left_of_nominal(&self, used_milli: u64) -> u64 {
        self.nominal_milli.saturating_sub(used_milli)
    }

    /// The part of a use that is borrowed, in milli-GPU.
    pub(crate) const fn borrowed_part(&self, used_milli: u64) -> u64 {
        used_milli.saturating_sub(self.nominal_milli)
    }
}

/// The members of all cohorts.
#[derive(Clone, Debug, Default)]
pub(crate) struct CohortIndex {
    members: Vec<CohortMember>,
    by_tenant: BTreeMap<String, Vec<usize>>,
    by_institution: BTreeMap<String, Vec<usize>>,
    by_cohort: BTreeMap<String, Vec<usize>>,
    /// The shared quota of each cohort, in milli-GPU.
    shared_milli: BTreeMap<String, u64>,
}

impl CohortIndex {
    /// The cohorts of these quotas.
    pub(crate) fn of(quotas: &BTreeMap<String, Document<Quota>>) -> Self {
        let mut index = Self::default();
        for quota in quotas.values() {
            let spec = &quota.spec;
            let (Some(cohort), Some(nominal_milli)) = (&spec.cohort, spec.max_concurrent_gpus_milli) else { continue };
            let (at, lends_milli) = (index.members.len(), spec.lends_milli());
            let (by_subject, subject) = match &spec.subject {
                QuotaSubject::Tenant(tenant) => (&mut index.by_tenant, tenant),
                QuotaSubject::Institution(institution) => (&mut index.by_institution, institution),
            };
            by_subject.entry(subject.clone()).or_default().push(at);
            index.by_cohort.entry(cohort.name.clone()).or_default().push(at);
            let shared = index.shared_milli.entry(cohort.name.clone()).or_default();
            *shared = shared.saturating_add(lends_milli);
            index.members.push(CohortMember {
                cohort: cohort.name.clone(),
                subject: spec.subject.clone(),
                classes: spec.classes.clone(),
                own_milli: nominal_milli - lends_milli,
                nominal_milli,
            });
        }
        index
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The members of a cohort, by the names of their quotas.
    pub(crate) fn members(&self, cohort: &str) -> Vec<&CohortMember> {
        self.at(self.by_cohort.get(cohort)).collect()
    }

    /// The members that count the leases of a tenant directly.
    pub(crate) fn of_tenant(&self, tenant: &str) -> impl Iterator<Item = &CohortMember> {
        self.at(self.by_tenant.get(tenant))
    }

    /// The members that count the leases of all tenants of an institution.
    pub(crate) fn of_institution(&self, institution: &str) -> impl Iterator<Item = &CohortMember> {
        self.at(self.by_institution.get(institution))
    }

    fn at(&self, numbers: Option<&Vec<usize>>) -> impl Iterator<Item = &CohortMember> {
        numbers.into_iter().flatten().filter_map(|at| self.members.get(*at))
    }

    /// The most that a quota may borrow of its cohort, if the other members use nothing, in milli-GPU.
    pub(crate) fn borrows_milli(&self, quota: &Quota) -> u64 {
        let Some(cohort) = &quota.cohort else { return 0 };
        let lent_by_others = self.shared_milli(&cohort.name).saturating_sub(quota.lends_milli());
        cohort.borrowing_limit_milli.map_or(lent_by_others, |limit| limit.min(lent_by_others))
    }

    /// The shared quota of a cohort, in milli-GPU.
    pub(crate) fn shared_milli(&self, cohort: &str) -> u64 {
        self.shared_milli.get(cohort).copied().unwrap_or(0)
    }
}

/// Whose leases count in the cohorts of a tenant: those of these tenants and of these institutions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CohortPeers<'b> {
    /// Tenants that quotas of the cohorts limit.
    pub tenants: BTreeSet<&'b str>,
    /// Institutions that quotas of the cohorts limit.
    pub institutions: BTreeSet<&'b str>,
}

impl Bundle {
    /// Whether any quota is in a cohort.
    #[must_use]
    pub fn has_cohorts(&self) -> bool {
        !self.cohorts.is_empty()
    }

    /// Whether a quota of a tenant is in a cohort.
    #[must_use]
    pub fn is_in_cohort(&self, tenant: &str) -> bool {
        self.has_cohorts() && self.quotas_of(tenant).any(|quota| quota.spec.cohort.is_some())
    }

    /// Whether a quota of a tenant that counts a class is in a cohort.
    #[must_use]
    pub fn counts_in_cohort(&self, tenant: &str, class: &str) -> bool {
        let mut quotas = self.quotas_of(tenant).filter(|quota| quota.spec.cohort.is_some());
        self.has_cohorts() && quotas.any(|quota| quota.spec.covers_class(class))
    }

    /// The lines by which quotas of a tenant that count a class are in cohorts.
    #[must_use]
    pub fn cohort_lines(&self, tenant: &str, class: &str) -> Vec<DocRef> {
        let quotas = self.quotas_of(tenant).filter(|quota| quota.spec.covers_class(class));
        quotas.filter(|quota| quota.spec.cohort.is_some()).map(|quota| quota.cite("cohort")).collect()
    }

    /// Whose leases count in the cohorts of a tenant's quotas.
    #[must_use]
    pub fn cohort_peers(&self, tenant: &str) -> CohortPeers<'_> {
        let mut peers = CohortPeers::default();
        let cohorts = self.quotas_of(tenant).filter_map(|quota| quota.spec.cohort.as_ref());
        for member in cohorts.flat_map(|cohort| self.cohorts.members(&cohort.name)) {
            match &member.subject {
                QuotaSubject::Tenant(tenant) => peers.tenants.insert(tenant),
                QuotaSubject::Institution(institution) => peers.institutions.insert(institution),
            };
        }
        peers
    }
}
