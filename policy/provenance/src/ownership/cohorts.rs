//! Who joins a cohort, whose members lend to each other: the others agree.
//!
//! A member alone may leave, lend less, borrow less and change its nominal quota: it takes back what is its own.

use std::collections::BTreeSet;

use comity_policy::{Quota, QuotaSubject};

use super::{Change, Owner};
use crate::documents::{DocumentSpec, Documents};

impl Change<'_> {
    /// The institutions of the other members of a cohort that a quota joins, or of which it may borrow more than before.
    pub(super) fn peers_of_quota(
        &self,
        name: &str,
        old: Option<&DocumentSpec>,
        new: Option<&DocumentSpec>,
    ) -> BTreeSet<Owner> {
        let (old, Some(new)) = (quota_of(old), quota_of(new)) else { return BTreeSet::new() };
        let same_owner = |old: &Quota| self.before.institution_of_quota(old) == self.after.institution_of_quota(new);
        if old.is_some_and(|old| same_owner(old) && borrows_no_more(old, new)) {
            return BTreeSet::new();
        }
        self.other_members(name, new)
    }

    /// The institutions of the other members of the cohorts of a tenant that moves to another institution.
    pub(super) fn peers_of_moved_tenant(
        &self,
        name: &str,
        old: Option<&DocumentSpec>,
        new: Option<&DocumentSpec>,
    ) -> BTreeSet<Owner> {
        let (Some(DocumentSpec::Tenant(old)), Some(DocumentSpec::Tenant(new))) = (old, new) else {
            return BTreeSet::new();
        };
        if old.institution == new.institution {
            return BTreeSet::new();
        }
        let quotas = self.after.iter().filter_map(|(key, spec)| match spec {
            DocumentSpec::Quota(quota) if is_about(quota, name) => Some((key.name.as_str(), quota)),
            _ => None,
        });
        quotas.flat_map(|(quota_name, quota)| self.other_members(quota_name, quota)).collect()
    }

    /// The owners of the other quotas in the cohort of one, after the change.
    fn other_members(&self, name: &str, quota: &Quota) -> BTreeSet<Owner> {
        let Some(cohort) = &quota.cohort else { return BTreeSet::new() };
        let documents: &Documents = self.after;
        let others = documents.quotas_of_cohort(&cohort.name).filter(|(other, _)| *other != name);
        let institutions = others.filter_map(|(_, other)| documents.institution_of_quota(other));
        institutions.map(|institution| self.owner(institution)).collect()
    }
}

fn quota_of(spec: Option<&DocumentSpec>) -> Option<&Quota> {
    if let Some(DocumentSpec::Quota(quota)) = spec { Some(quota) } else { None }
}

fn is_about(quota: &Quota, tenant: &str) -> bool {
    matches!(&quota.subject, QuotaSubject::Tenant(subject) if subject == tenant)
}

/// Whether a quota was in its cohort before, and may borrow no more than it could.
fn borrows_no_more(old: &Quota, new: &Quota) -> bool {
    let Some(cohort) = &new.cohort else { return true };
    let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    old.cohort.as_ref().is_some_and(|before| {
        before.name == cohort.name && limit(cohort.borrowing_limit_milli) <= limit(before.borrowing_limit_milli)
    })
}
