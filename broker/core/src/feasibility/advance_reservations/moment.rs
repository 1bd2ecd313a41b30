//! What tenants have, and what is kept for them, at one moment at one donor.

use std::collections::{BTreeMap, BTreeSet};

use crate::feasibility::advance_reservations::donor_windows::{KeptWindow, LendableGpus};
use crate::model::time::Timestamp;

/// Thousandths of GPUs of one tenant and class.
#[derive(Clone, Copy, Debug, Default)]
struct TenantShare {
    kept: u64,
    lent: u64,
}

impl TenantShare {
    fn counts(self) -> u64 {
        self.kept.max(self.lent)
    }

    fn unused(self) -> u64 {
        self.kept.saturating_sub(self.lent)
    }
}

/// The shares of all tenants at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment<'a> {
    /// By tenant and class.
    shares: BTreeMap<(&'a str, &'a str), TenantShare>,
}

impl<'a> Moment<'a> {
    /// The windows that are open at `at`, without leases.
    pub(crate) fn of(windows: &[KeptWindow<'a>], at: Timestamp) -> Self {
        let mut moment = Self::default();
        for KeptWindow { reservation, .. } in windows.iter().filter(|window| window.is_open(at)) {
            let spec = &reservation.spec;
            let share = moment.shares.entry((&spec.tenant, &spec.class)).or_default();
            share.kept = share.kept.saturating_add(spec.gpus_milli);
        }
        moment
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    pub(crate) fn add_lent(&mut self, tenant: &'a str, class: &'a str, milli: u64) {
        let share = self.shares.entry((tenant, class)).or_default();
        share.lent = share.lent.saturating_add(milli);
    }

    /// Thousandths that leases of a tenant have.
    pub(crate) fn lent(&self, tenant: &str, class: &str) -> u64 {
        self.shares.get(&(tenant, class)).map_or(0, |share| share.lent)
    }

    /// Thousandths that are kept for a tenant, and that it does not use.
    pub(crate) fn unused(&self, tenant: &str, class: &str) -> u64 {
        self.shares.get(&(tenant, class)).map_or(0, |share| share.unused())
    }

    /// Thousandths that `milli` more for a tenant would take of what is kept for others, in one class or in all.
    pub(crate) fn taken_from_others(&self, lendable: &LendableGpus<'_>, tenant: &str, class: &str, milli: u64) -> u64 {
        let own = self.shares.get(&(tenant, class)).copied().unwrap_or_default();
        let grown = TenantShare { lent: own.lent.saturating_add(milli), ..own };
        let grows = grown.counts() - own.counts();
        if grows == 0 {
            return 0;
        }
        let of_pool = |pool: Option<&str>| {
            let others = self.shares.iter().filter(|((of, class), _)| *of != tenant && is_in(pool, class));
            let unused: u64 = others.map(|(_, share)| share.unused()).sum();
            unused.min(self.excess(lendable, pool, grows)).min(grows)
        };
        of_pool(Some(class)).max(of_pool(None))
    }

    /// Thousandths that leases hold of what is kept for other tenants, summed over the classes and over all of them.
    pub(crate) fn shortage(&self, lendable: &LendableGpus<'_>) -> u64 {
        let kept = self.shares.iter().filter(|(_, share)| share.kept > 0);
        let classes: BTreeSet<&str> = kept.map(|((_, class), _)| *class).collect();
        let pools = classes.into_iter().map(Some).chain([None]);
        pools.map(|pool| self.unused_in(pool).min(self.excess(lendable, pool, 0))).sum()
    }

    /// Thousandths of a class that are kept for somebody and cannot be had.
    pub(crate) fn short_of(&self, lendable: &LendableGpus<'_>, class: &str) -> u64 {
        let short = |pool: Option<&str>| self.unused_in(pool).min(self.excess(lendable, pool, 0));
        short(Some(class)).max(short(None))
    }

    fn unused_in(&self, pool: Option<&str>) -> u64 {
        let shares = self.shares.iter().filter(|((_, class), _)| is_in(pool, class));
        shares.map(|(_, share)| share.unused()).sum()
    }

    /// Thousandths above what can be lent, with `more` in addition.
    fn excess(&self, lendable: &LendableGpus<'_>, pool: Option<&str>, more: u64) -> u64 {
        let shares = self.shares.iter().filter(|((_, class), _)| is_in(pool, class));
        let counted = shares.fold(more, |sum, (_, share)| sum.saturating_add(share.counts()));
        counted.saturating_sub(lendable.milli(pool))
    }
}

fn is_in(pool: Option<&str>, class: &str) -> bool {
    pool.is_none_or(|pool| pool == class)
}
