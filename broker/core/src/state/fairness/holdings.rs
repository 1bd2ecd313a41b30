//! What is held and lent now: derived from the leases, kept at hand.

use std::collections::BTreeMap;

use crate::model::amounts::Amounts;
use crate::model::id::{InstitutionId, TenantId};
use crate::model::lease::Lease;

/// Sums over the leases that take something of their donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) tenants: BTreeMap<TenantId, Amounts>,
    pub(crate) institutions: BTreeMap<InstitutionId, Amounts>,
    /// By the donor's institution, as far as others hold it.
    pub(crate) lenders: BTreeMap<InstitutionId, Amounts>,
}

impl Holdings {
    /// Tenants that hold something.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.tenants.keys()
    }

    /// Counts a lease in; `lender` owns its donor.
    pub(crate) fn add(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let amounts = Amounts::of(&lease.placement);
        self.each(lease, lender, |sum| *sum = sum.plus(amounts));
    }

    /// Counts a lease out that was counted in.
    pub(crate) fn remove(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let amounts = Amounts::of(&lease.placement);
        self.each(lease, lender, |sum| *sum = sum.minus(amounts));
    }

    fn each(&mut self, lease: &Lease, lender: Option<&InstitutionId>, change: impl Fn(&mut Amounts)) {
        at(&mut self.tenants, &lease.tenant, &change);
        at(&mut self.institutions, &lease.institution, &change);
        if let Some(lender) = lender.filter(|lender| **lender != lease.institution) {
            at(&mut self.lenders, lender, &change);
        }
    }
}

/// Entries that become empty go, so that equal states are equal values.
fn at<K: Ord + Clone>(sums: &mut BTreeMap<K, Amounts>, key: &K, change: impl Fn(&mut Amounts)) {
    let sum = sums.entry(key.clone()).or_default();
    change(sum);
    if sum.is_zero() {
        sums.remove(key);
    }
}
