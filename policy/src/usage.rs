//! What is borrowed at the moment, summed up in the ways that policy asks for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::borrow::InUse;

/// One lease, as it counts against limits. The class, institution and agreement are those of the moment it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseUse<'l> {
    /// The tenant that borrows.
    pub tenant: &'l str,
    /// The tenant's institution.
    pub institution: &'l str,
    /// The cluster that lends.
    pub donor: &'l str,
    /// The class of the GPUs.
    pub class: &'l str,
    /// The agreement it was granted under; `None` within one institution.
    pub agreement: Option<&'l str>,
    /// Its GPUs, in milli-GPU.
    pub gpus_milli: u64,
    /// Whether another lease of the same request takes its place. Then it counts only where it lies, with its donor and
    /// its agreement: what its tenant and its institution use counts once.
    pub replaced: bool,
}

/// Milli-GPU by class.
type ByClass = BTreeMap<String, u64>;

/// Sums over the leases in force. Kept by whoever keeps the leases: [`add`](Self::add) when one is placed,
/// [`remove`](Self::remove) when its capacity is free again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTable {
    by_tenant: BTreeMap<String, ByClass>,
    by_institution: BTreeMap<String, ByClass>,
    by_donor: BTreeMap<String, BTreeMap<String, ByClass>>,
    by_agreement: BTreeMap<String, u64>,
}

impl UsageTable {
    /// Counts a lease in.
    pub fn add(&mut self, lease: &LeaseUse<'_>) {
        let milli = lease.gpus_milli;
        let grow_class = |by_class: &mut ByClass| grow(by_class, lease.class, milli);
        if !lease.replaced {
            with(&mut self.by_tenant, lease.tenant, grow_class);
            with(&mut self.by_institution, lease.institution, grow_class);
        }
        with(&mut self.by_donor, lease.donor, |donor| with(donor, lease.tenant, grow_class));
        if let Some(agreement) = lease.agreement {
            grow(&mut self.by_agreement, agreement, milli);
        }
    }

    /// Counts a lease out. Give what was given to [`add`](Self::add); sums stop at zero and empty entries go.
    pub fn remove(&mut self, lease: &LeaseUse<'_>) {
        let milli = lease.gpus_milli;
        if !lease.replaced {
            shrink_in(&mut self.by_tenant, lease.tenant, lease.class, milli);
            shrink_in(&mut self.by_institution, lease.institution, lease.class, milli);
        }
        if let Some(donor) = self.by_donor.get_mut(lease.donor) {
            shrink_in(donor, lease.tenant, lease.class, milli);
            if donor.is_empty() {
                self.by_donor.remove(lease.donor);
            }
        }
        if let Some(agreement) = lease.agreement {
            shrink(&mut self.by_agreement, agreement, milli);
        }
    }

    /// What is in use, as seen by one question: this tenant of this institution asks this donor for this class.
    #[must_use]
    pub fn in_use<'u>(&'u self, tenant: &str, institution: &str, donor: &str, class: &str) -> InUse<'u> {
        let total = |sums: Option<&ByClass>| {
            sums.map_or(0, |sums| sums.values().fold(0_u64, |sum, milli| sum.saturating_add(*milli)))
        };
        let of_class = |sums: Option<&ByClass>| sums.and_then(|sums| sums.get(class)).copied().unwrap_or(0);
        let by_tenant = self.by_tenant.get(tenant);
        let by_institution = self.by_institution.get(institution);
        InUse {
            tenant_milli: total(by_tenant),
            tenant_class_milli: of_class(by_tenant),
            institution_milli: total(by_institution),
            institution_class_milli: of_class(by_institution),
            lent_by_donor: self.by_donor.get(donor),
            lent_under_agreement: Some(&self.by_agreement),
        }
    }
}

/// Changes what is kept for a name. A name that is known is not copied.
fn with<T: Default>(sums: &mut BTreeMap<String, T>, key: &str, change: impl FnOnce(&mut T)) {
    match sums.get_mut(key) {
        Some(known) => change(known),
        None => change(sums.entry(key.to_owned()).or_default()),
    }
}

fn grow(sums: &mut BTreeMap<String, u64>, key: &str, milli: u64) {
    with(sums, key, |sum: &mut u64| *sum = sum.saturating_add(milli));
}

fn shrink(sums: &mut BTreeMap<String, u64>, key: &str, milli: u64) {
    if let Some(sum) = sums.get_mut(key) {
        *sum = sum.saturating_sub(milli);
        if *sum == 0 {
            sums.remove(key);
        }
    }
}

fn shrink_in(sums: &mut BTreeMap<String, ByClass>, key: &str, class: &str, milli: u64) {
    if let Some(by_class) = sums.get_mut(key) {
        shrink(by_class, class, milli);
        if by_class.is_empty() {
            sums.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_and_removed_leaves_nothing() {
        let one = LeaseUse {
            tenant: "t",
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
        let seen = table.in_use("t", "i", "d", "c");
        assert_eq!(
            (seen.tenant_milli, seen.tenant_class_milli, seen.institution_milli, seen.institution_class_milli),
            (3000, 3000, 4500, 3000)
        );
        assert_eq!(seen.lent_by_donor_milli(), 4500);
        assert_eq!(seen.lent_under_agreement_milli("a"), 3000);
        for lease in [&one, &one, &other, &other] {
            table.remove(lease);
        }
        assert_eq!(table, UsageTable::default());
    }
}
