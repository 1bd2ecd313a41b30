//! What quotas lend to their cohorts and may borrow of them.

use super::{UsageTable, milli_of};
use crate::bundle::Bundle;
use crate::documents::QuotaSubject;

/// What a quota brings into its cohort, and what it may take; amounts in milli-GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CohortTerms {
    /// The cohort.
    pub cohort: String,
    /// `maxConcurrentGpus`: its nominal quota.
    pub nominal_milli: u64,
    /// The most that it may borrow, if the other members use nothing.
    pub borrows_milli: u64,
    /// The most of its nominal quota that others may borrow.
    pub lends_milli: u64,
}

impl Bundle {
    /// The terms of a quota in its cohort; `None` if the quota is missing or in no cohort.
    #[must_use]
    pub fn cohort_terms(&self, quota: &str) -> Option<CohortTerms> {
        let spec = &self.quotas.get(quota)?.spec;
        let (cohort, nominal_milli) = (spec.cohort.as_ref()?, spec.max_concurrent_gpus_milli?);
        Some(CohortTerms {
            cohort: cohort.name.clone(),
            nominal_milli,
            borrows_milli: self.cohorts.borrows_milli(spec),
            lends_milli: spec.lends_milli(),
        })
    }

    /// What a quota counts of the leases in a table, in milli-GPU; 0 if the quota is missing.
    #[must_use]
    pub fn quota_used_milli(&self, quota: &str, usage: &UsageTable) -> u64 {
        let Some(quota) = self.quotas.get(quota) else { return 0 };
        let in_use = match &quota.spec.subject {
            QuotaSubject::Tenant(tenant) => usage.in_use(tenant, "", "", ""),
            QuotaSubject::Institution(institution) => usage.in_use("", institution, "", ""),
        };
        milli_of(in_use.of_quota(&quota.spec.subject, false), |class| quota.spec.covers_class(class))
    }
}
