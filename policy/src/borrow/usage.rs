//! Sums the GPUs of current leases by tenant, institution, donor and agreement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cohort_use::{CohortUse, Counting};
use super::{InUse, milli_of};
use crate::bundle::Bundle;
use crate::documents::QuotaSubject;

/// A lease, as limits count it. Class, institution and agreement are those at the time of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseUse<'l> {
    /// The tenant that borrows.
    pub tenant: &'l str,
    /// The user who submitted the request.
    pub user: &'l str,
    /// The tenant's institution.
    pub institution: &'l str,
    /// The cluster that lends.
    pub donor: &'l str,
    /// The class of the GPUs.
    pub class: &'l str,
    /// The agreement it was granted under; `None` within one institution.
    pub agreement: Option<&'l str>,
    /// GPUs of the lease, in milli-GPU.
    pub gpus_milli: u64,
    /// Whether another lease of the same request replaces it. It then counts for its donor and agreement only, so that
    /// tenant and institution count the request once.
    pub replaced: bool,
}

/// Milli-GPU by class.
pub(crate) type ByClass = BTreeMap<String, u64>;

/// GPUs that a donor lends, in milli-GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorUse {
    /// By tenant and class.
    pub(super) by_tenant: BTreeMap<String, ByClass>,
    /// By class: the sums over the tenants.
    pub(super) by_class: ByClass,
}

/// Sums over the current leases. Call [`add`](Self::add) when a lease is placed and [`remove`](Self::remove) when its
/// capacity is free again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTable {
    by_tenant: BTreeMap<String, ByClass>,
    by_institution: BTreeMap<String, ByClass>,
    /// By tenant and user.
    by_tenant_user: BTreeMap<String, BTreeMap<String, ByClass>>,
    /// By institution and user.
    by_institution_user: BTreeMap<String, BTreeMap<String, ByClass>>,
    by_donor: BTreeMap<String, DonorUse>,
    by_agreement: BTreeMap<String, u64>,
    #[serde(skip)]
    cohorts: CohortUse,
}

impl UsageTable {
    /// No leases, and the cohorts of a bundle to count them in.
    #[must_use]
    pub fn under(bundle: &Bundle) -> Self {
        Self { cohorts: CohortUse::of(bundle), ..Self::default() }
    }

    /// Adds a lease to the sums.
    pub fn add(&mut self, lease: &LeaseUse<'_>) {
        let milli = lease.gpus_milli;
        let add_to_class = |by_class: &mut ByClass| add_milli(by_class, lease.class, milli);
        if !lease.replaced {
            update(&mut self.by_tenant, lease.tenant, add_to_class);
            update(&mut self.by_institution, lease.institution, add_to_class);
            update(&mut self.by_tenant_user, lease.tenant, |users| update(users, lease.user, add_to_class));
            update(&mut self.by_institution_user, lease.institution, |users| update(users, lease.user, add_to_class));
            self.count_in_cohorts(lease, Counting::Begins);
        }
        update(&mut self.by_donor, lease.donor, |donor: &mut DonorUse| {
            update(&mut donor.by_tenant, lease.tenant, add_to_class);
            add_to_class(&mut donor.by_class);
        });
        if let Some(agreement) = lease.agreement {
            add_milli(&mut self.by_agreement, agreement, milli);
        }
    }

    /// Subtracts a lease with the same facts as in [`add`](Self::add). Sums saturate at zero; empty entries disappear.
    pub fn remove(&mut self, lease: &LeaseUse<'_>) {
        let milli = lease.gpus_milli;
        if !lease.replaced {
            subtract_in_class(&mut self.by_tenant, lease.tenant, lease.class, milli);
            subtract_in_class(&mut self.by_institution, lease.institution, lease.class, milli);
            subtract_below(&mut self.by_tenant_user, lease.tenant, lease.user, lease.class, milli);
            subtract_below(&mut self.by_institution_user, lease.institution, lease.user, lease.class, milli);
            self.count_in_cohorts(lease, Counting::Ceases);
        }
        if let Some(donor) = self.by_donor.get_mut(lease.donor) {
            subtract_in_class(&mut donor.by_tenant, lease.tenant, lease.class, milli);
            subtract_milli(&mut donor.by_class, lease.class, milli);
            if donor.by_class.is_empty() {
                self.by_donor.remove(lease.donor);
            }
        }
        if let Some(agreement) = lease.agreement {
            subtract_milli(&mut self.by_agreement, agreement, milli);
        }
    }

    /// What a quota on `subject` counts, by class.
    pub(super) fn by_class_of(&self, subject: &QuotaSubject) -> Option<&ByClass> {
        match subject {
            QuotaSubject::Tenant(tenant) => self.by_tenant.get(tenant),
            QuotaSubject::Institution(institution) => self.by_institution.get(institution),
        }
    }

    /// Counts a lease in the cohorts of its tenant and institution, whose sums have it or have it no more.
    fn count_in_cohorts(&mut self, lease: &LeaseUse<'_>, counting: Counting) {
        let Some(index) = self.cohorts.index() else { return };
        let sums = [
            (self.by_tenant.get(lease.tenant), index.of_tenant(lease.tenant).collect::<Vec<_>>()),
            (self.by_institution.get(lease.institution), index.of_institution(lease.institution).collect()),
        ];
        for (by_class, members) in sums {
            for member in members.into_iter().filter(|member| member.covers_class(lease.class)) {
                let used_milli = milli_of(by_class, |class| member.covers_class(class));
                self.cohorts.account(member, counting, lease.gpus_milli, used_milli);
            }
        }
    }

    /// The GPUs in use that count against a lease from `donor` to `tenant` of `institution`, for a request of `user`.
    #[must_use]
    pub fn in_use<'u>(&'u self, tenant: &str, institution: &str, user: &str, donor: &str) -> InUse<'u> {
        // Limits on each user do not count for an unknown one.
        let of_user = |sums: &'u BTreeMap<String, BTreeMap<String, ByClass>>, subject: &str| {
            if user.is_empty() { None } else { sums.get(subject).and_then(|users| users.get(user)) }
        };
        InUse {
            by_tenant: self.by_tenant.get(tenant),
            by_institution: self.by_institution.get(institution),
            by_tenant_user: of_user(&self.by_tenant_user, tenant),
            by_institution_user: of_user(&self.by_institution_user, institution),
            cohorts: Some(&self.cohorts),
            lent_by_donor: self.by_donor.get(donor),
            lent_under_agreement: Some(&self.by_agreement),
            gpu_time: None,
        }
    }
}

/// Applies `change` to the entry of `key`, inserting a default first. Clones `key` only to insert.
pub(super) fn update<T: Default>(sums: &mut BTreeMap<String, T>, key: &str, change: impl FnOnce(&mut T)) {
    match sums.get_mut(key) {
        Some(known) => change(known),
        None => change(sums.entry(key.to_owned()).or_default()),
    }
}

fn add_milli(sums: &mut BTreeMap<String, u64>, key: &str, milli: u64) {
    update(sums, key, |sum: &mut u64| *sum = sum.saturating_add(milli));
}

fn subtract_milli(sums: &mut BTreeMap<String, u64>, key: &str, milli: u64) {
    if let Some(sum) = sums.get_mut(key) {
        *sum = sum.saturating_sub(milli);
        if *sum == 0 {
            sums.remove(key);
        }
    }
}

fn subtract_in_class(sums: &mut BTreeMap<String, ByClass>, key: &str, class: &str, milli: u64) {
    if let Some(by_class) = sums.get_mut(key) {
        subtract_milli(by_class, class, milli);
        if by_class.is_empty() {
            sums.remove(key);
        }
    }
}

/// Subtracts from the sums of `inner` below `outer`.
fn subtract_below(
    sums: &mut BTreeMap<String, BTreeMap<String, ByClass>>,
    outer: &str,
    inner: &str,
    class: &str,
    milli: u64,
) {
    if let Some(below) = sums.get_mut(outer) {
        subtract_in_class(below, inner, class, milli);
        if below.is_empty() {
            sums.remove(outer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::milli_of;
    use super::*;

    #[test]
    fn removing_all_leases_empties_the_table() {
        let one = LeaseUse {
            tenant: "t",
            user: "v",
            institution: "i",
            donor: "d",
            class: "c",
            agreement: Some("a"),
            gpus_milli: 1500,
            replaced: false,
        };
        let other = LeaseUse { tenant: "u", class: "e", agreement: None, ..one };
        let mut table = UsageTable::default();
        table.add(&one);
        table.add(&one);
        table.add(&other);
        let seen = table.in_use("t", "i", "v", "d");
        assert_eq!(
            [seen.by_tenant, seen.by_institution, seen.by_tenant_user, seen.by_institution_user]
                .map(|it| milli_of(it, |_| true)),
            [3000, 4500, 3000, 4500]
        );
        assert_eq!(milli_of(seen.by_institution, |class| class == "c"), 3000);
        assert_eq!(milli_of(table.in_use("t", "i", "w", "d").by_institution_user, |_| true), 0);
        assert_eq!(seen.lent_by_donor_milli(), 4500);
        assert_eq!(seen.lent_under_agreement_milli("a"), 3000);
        for lease in [&one, &one, &other, &other] {
            table.remove(lease);
        }
        assert_eq!(table, UsageTable::default());
    }
}
