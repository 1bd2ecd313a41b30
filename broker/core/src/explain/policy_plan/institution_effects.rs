//! Institutions that a bundle would have lend, or let borrow, more or less.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{BorrowFacts, Bundle, LeaseUse, UsageTable};
use comity_types::ClusterId;

use super::capacity_effects::{devices_milli, lent_at_most_milli};
use super::{Effects, Planned};
use crate::state::State;

/// Most combinations of a tenant, a donor and a class that are examined under each bundle, of institutions by name.
const MAX_BORROWINGS_EXAMINED: usize = 10_000;

/// An institution that would lend, or could borrow, more or less; amounts in thousandths of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstitutionEffect {
    /// The institution.
    pub institution: String,
    /// What its clusters may lend in all, before and after.
    pub lends_milli: [u64; 2],
    /// What its tenants may hold together if nothing else is lent, before and after.
    pub borrows_milli: [u64; 2],
}

/// The institutions that would gain or lose capacity, by name.
pub(super) fn institution_effects(before: &Planned<'_>, after: &Planned<'_>) -> Effects<InstitutionEffect> {
    let both = [Capacity::of(before), Capacity::of(after)];
    let names: BTreeSet<&String> = both.iter().flatten().flat_map(|it| it.bundle.institutions.keys()).collect();
    let (mut left, mut unexamined, mut found) = (MAX_BORROWINGS_EXAMINED, 0, Vec::new());
    for institution in names {
        let size = both.iter().flatten().map(|capacity| capacity.combinations(institution)).max().unwrap_or(0);
        let Some(rest) = left.checked_sub(size) else {
            unexamined += 1;
            continue;
        };
        left = rest;
        let amounts = both.each_ref().map(|capacity| {
            let capacity = capacity.as_ref();
            capacity.map_or((0, 0), |it| (it.lends_milli(institution), it.borrows_milli(institution)))
        });
        let (lends_milli, borrows_milli) = (amounts.map(|amounts| amounts.0), amounts.map(|amounts| amounts.1));
        if lends_milli[0] != lends_milli[1] || borrows_milli[0] != borrows_milli[1] {
            found.push(InstitutionEffect { institution: institution.clone(), lends_milli, borrows_milli });
        }
    }
    Effects { unexamined, ..found.into_iter().collect() }
}

/// The capacity of the federation under one bundle.
struct Capacity<'s> {
    state: &'s State,
    /// Without limits on single requests.
    bundle: &'s Bundle,
    /// What each member may lend in all, in thousandths of GPUs.
    lent_milli: BTreeMap<&'s ClusterId, u64>,
}

impl<'s> Capacity<'s> {
    fn of(planned: &'s Planned<'_>) -> Option<Self> {
        let (state, bundle) = (planned.state, planned.unsplit.as_ref()?);
        let lent = state.clusters.keys().map(|cluster| (cluster, lent_at_most_milli(state, cluster)));
        Some(Self { state, bundle, lent_milli: lent.filter(|(_, milli)| *milli > 0).collect() })
    }

    fn lends_milli(&self, institution: &str) -> u64 {
        let owned = |cluster: &&ClusterId| self.bundle.institution_of_cluster(cluster.as_str()) == Some(institution);
        self.lent_milli
            .iter()
            .filter(|(cluster, _)| owned(cluster))
            .fold(0, |sum, (_, milli)| sum.saturating_add(*milli))
    }

    fn combinations(&self, institution: &str) -> usize {
        let tenants = self.bundle.tenants.values().filter(|tenant| tenant.spec.institution == institution);
        tenants.map(|tenant| tenant.spec.classes.len()).sum::<usize>().saturating_mul(self.lent_milli.len())
    }

    /// Has tenant after tenant borrow from donor after donor as much as policy allows beside what they hold by then.
    fn borrows_milli(&self, institution: &str) -> u64 {
        let mut usage = UsageTable::under(self.bundle);
        let mut lent = self.lent_milli.clone();
        let mut left: BTreeMap<(&ClusterId, &str), u64> = BTreeMap::new();
        let mut total = 0_u64;
        for tenant in self.bundle.tenants.values().filter(|tenant| tenant.spec.institution == institution) {
            for (donor, lent) in &mut lent {
                for class in &tenant.spec.classes {
                    let devices = left
                        .entry((donor, class))
                        .or_insert_with(|| devices_milli(self.state, donor, &|other| other == class.as_str()));
                    let (amount, agreement) =
                        self.most_milli(&usage, &tenant.name, donor, class, (*devices).min(*lent));
                    usage.add(&LeaseUse {
                        tenant: &tenant.name,
                        user: "",
                        institution,
                        donor: donor.as_str(),
                        class,
                        agreement,
                        gpus_milli: amount,
                        replaced: false,
                    });
                    (*devices, *lent) = (*devices - amount, *lent - amount);
                    total = total.saturating_add(amount);
                }
            }
        }
        total
    }

    /// The largest amount up to `most` that the tenant may borrow beside `usage`, and the agreement it counts for.
    fn most_milli<'b>(
        &'b self,
        usage: &UsageTable,
        tenant: &str,
        donor: &ClusterId,
        class: &str,
        most: u64,
    ) -> (u64, Option<&'b str>) {
        let Some(document) = self.bundle.tenants.get(tenant) else { return (0, None) };
        let Some(origin) = document.spec.clusters.iter().find(|origin| *origin != donor.as_str()) else {
            return (0, None);
        };
        let terms = self.bundle.clusters.get(donor.as_str());
        let delivery = terms.and_then(|terms| terms.spec.delivery.first().copied()).unwrap_or_default();
        let ask = |gpus_milli: u64| {
            self.bundle.may_borrow_under(&BorrowFacts {
                tenant,
                user: "",
                origin_cluster: origin,
                donor_cluster: donor.as_str(),
                class,
                gpus_milli,
                beside_milli: 0,
                delivery,
                duration_ms: 1,
                notice_ms: None,
                now_ms: self.state.log_time.0,
                data: &[],
                purpose: "",
                in_use: usage.in_use(tenant, &document.spec.institution, "", donor.as_str()),
            })
        };
        let (mut least, mut above) = (0, most.saturating_add(1));
        while above - least > 1 {
            let middle = least.midpoint(above);
            if ask(middle).is_ok() { least = middle } else { above = middle }
        }
        (least, ask(least).ok().flatten())
    }
}
