//! Weighted dominant shares, updated as a plan places requests.

use std::collections::BTreeMap;

use comity_policy::Bundle;
use comity_types::{InstitutionId, TenantId};

use crate::model::amounts::Amounts;
use crate::model::limits::WHOLE_MILLI;
use crate::state::State;
use crate::state::fairness::past::{Past, to_fraction_units};

/// The default weight, for tenants and institutions without a policy document; other weights are relative to it.
const DEFAULT_WEIGHT: u32 = 100;
/// Upper bound of the reciprocity bonus for lending, in thousandths.
const MAX_RECIPROCITY_BONUS: u128 = 3_000;

/// Shares of tenants and institutions, computed on first use and cached.
pub struct Shares<'a> {
    state: &'a State,
    bundle: &'a Bundle,
    tenants: BTreeMap<&'a str, Amounts>,
    institutions: BTreeMap<&'a str, Amounts>,
    /// Present and past lending of each institution in GPUs, and the mean over all.
    lent: Option<(BTreeMap<&'a str, u64>, u128)>,
}

impl<'a> Shares<'a> {
    /// The shares before the plan places anything.
    #[must_use]
    pub fn new(state: &'a State, bundle: &'a Bundle) -> Self {
        Self { state, bundle, tenants: BTreeMap::new(), institutions: BTreeMap::new(), lent: None }
    }

    /// Institution of a tenant; empty if policy no longer has the tenant.
    #[must_use]
    pub fn institution_of(&self, tenant: &str) -> &'a str {
        self.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str())
    }

    /// Dominant share of a tenant within its institution, divided by its weight. Unit: 2^-40 of total capacity at the
    /// default weight of 100.
    pub fn tenant(&mut self, tenant: &'a str) -> u64 {
        let weight = self.bundle.tenants.get(tenant).map_or(DEFAULT_WEIGHT, |tenant| tenant.spec.weight);
        weighted(self.dominant(tenant), u128::from(weight) * 1_000)
    }

    /// Dominant share of an institution, divided by its weight and its reciprocity. Same unit.
    pub fn institution(&mut self, institution: &'a str) -> u64 {
        let weight = self.weight(institution);
        let used = self.used_by_institution(institution);
        weighted(dominant(used, self.state.derived.capacity), weight)
    }

    /// Unweighted dominant share of a tenant. Unit: 2^-40 of total capacity.
    pub fn dominant(&mut self, tenant: &'a str) -> u64 {
        let used = self.used_by_tenant(tenant);
        dominant(used, self.state.derived.capacity)
    }

    /// The divisor of an institution's share: weight × 1,000 × reciprocity.
    pub fn weight(&mut self, institution: &str) -> u128 {
        let weight = self.bundle.institutions.get(institution).map_or(DEFAULT_WEIGHT, |found| found.spec.weight);
        let count = u128::try_from(self.bundle.institutions.len().max(1)).unwrap_or(1);
        let (state, lent) = (self.state, &mut self.lent);
        let (lent, mean) = lent.get_or_insert_with(|| lent_by(state, count));
        let lent = u128::from(lent.get(institution).copied().unwrap_or(0));
        let reciprocity = 1_000 + (lent * 1_000 / (*mean).max(1)).min(MAX_RECIPROCITY_BONUS);
        u128::from(weight) * reciprocity
    }

    /// Adds what the plan places for a tenant.
    pub fn add(&mut self, tenant: &'a str, amounts: Amounts) {
        let amounts = Past::default().plus_held(amounts);
        let institution = self.institution_of(tenant);
        let used = self.used_by_tenant(tenant).plus(amounts);
        self.tenants.insert(tenant, used);
        let used = self.used_by_institution(institution).plus(amounts);
        self.institutions.insert(institution, used);
    }

    fn used_by_tenant(&mut self, tenant: &'a str) -> Amounts {
        let state = self.state;
        *self.tenants.entry(tenant).or_insert_with(|| {
            let held = &state.derived.holdings.tenants;
            TenantId::parse(tenant, "tenant")
                .map_or_else(|_| Amounts::default(), |id| used(state, state.fairness.tenants.get(&id), held.get(&id)))
        })
    }

    fn used_by_institution(&mut self, institution: &'a str) -> Amounts {
        let state = self.state;
        *self.institutions.entry(institution).or_insert_with(|| {
            let held = &state.derived.holdings.institutions;
            InstitutionId::parse(institution, "institution").map_or_else(
                |_| Amounts::default(),
                |id| used(state, state.fairness.institutions.get(&id), held.get(&id)),
            )
        })
    }
}

/// Present plus past use, in 2^-20 of units.
fn used(state: &State, past: Option<&Past>, held: Option<&Amounts>) -> Amounts {
    let held = held.copied().unwrap_or_default();
    let now = state.log_time;
    past.copied()
        .unwrap_or_else(|| Past::zero(now))
        .advanced(held, now, state.settings().usage_half_life)
        .plus_held(held)
}

/// Present and past lending of each institution, and the mean over `count` institutions. The mean is at least one GPU,
/// so that the first loan does not count as everything.
fn lent_by(state: &State, count: u128) -> (BTreeMap<&str, u64>, u128) {
    let held = &state.derived.holdings.lenders;
    let past = &state.fairness.lenders;
    let lenders = past.keys().chain(held.keys());
    let lent: BTreeMap<&str, u64> =
        lenders.map(|id| (id.as_str(), used(state, past.get(id), held.get(id)).gpu_milli)).collect();
    let all: u128 = lent.values().map(|&lent| u128::from(lent)).sum();
    let mean = (all / count).max(u128::from(to_fraction_units(u64::from(WHOLE_MILLI))));
    (lent, mean)
}

/// The largest fraction of capacity that is used, in 2^-40. `used` is in 2^-20 of units, `capacity` in units.
fn dominant(used: Amounts, capacity: Amounts) -> u64 {
    let share = |used: u64, capacity: u64| {
        (u128::from(used) << 20).checked_div(u128::from(capacity)).and_then(|share| u64::try_from(share).ok())
    };
    let each = [
        share(used.gpu_milli, capacity.gpu_milli),
        share(used.cpu_milli, capacity.cpu_milli),
        share(used.memory_mib, capacity.memory_mib),
    ];
    each.into_iter().flatten().max().unwrap_or(0)
}

/// Divides a share by a weight in thousandths.
fn weighted(share: u64, weight: u128) -> u64 {
    let by = u128::from(DEFAULT_WEIGHT) * 1_000;
    u64::try_from(u128::from(share) * by / weight.max(1)).unwrap_or(u64::MAX)
}
