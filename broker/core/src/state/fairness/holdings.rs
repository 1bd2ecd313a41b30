//! Present use and lending, computed from the leases.

use std::collections::BTreeMap;

use comity_types::{InstitutionId, TenantId};

use crate::model::amounts::Amounts;
use crate::model::lease::Lease;

/// Sums over the leases that occupy capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) tenants: BTreeMap<TenantId, Amounts>,
    pub(crate) institutions: BTreeMap<InstitutionId, Amounts>,
    /// Amounts that each donor institution lends to other institutions.
    pub(crate) lenders: BTreeMap<InstitutionId, Amounts>,
}

impl Holdings {
    /// Tenants with any use.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.tenants.keys()
    }

    /// Adds a lease. `lender` is the institution that owns its donor.
    pub(crate) fn add(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let amounts = Amounts::of(&lease.placement);
        self.change_sums(lease, lender, |sum| *sum = sum.plus(amounts));
    }

    /// Subtracts a lease that was added before.
    pub(crate) fn remove(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let amounts = Amounts::of(&lease.placement);
        self.change_sums(lease, lender, |sum| *sum = sum.minus(amounts));
    }

    fn change_sums(&mut self, lease: &Lease, lender: Option<&InstitutionId>, change: impl Fn(&mut Amounts)) {
        change_sum(&mut self.tenants, &lease.tenant, &change);
        change_sum(&mut self.institutions, &lease.institution, &change);
        if let Some(lender) = lender.filter(|lender| **lender != lease.institution) {
            change_sum(&mut self.lenders, lender, &change);
        }
    }
}

/// Changes one sum. Removes zero entries, so that equal states compare equal.
fn change_sum<K: Ord + Clone>(sums: &mut BTreeMap<K, Amounts>, key: &K, change: impl Fn(&mut Amounts)) {
    let sum = sums.entry(key.clone()).or_default();
    change(sum);
    if sum.is_zero() {
        sums.remove(key);
    }
}
