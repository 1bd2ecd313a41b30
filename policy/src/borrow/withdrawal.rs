//! Whether policy still permits a lease in force, and what becomes of it if not.

use std::collections::BTreeMap;

use comity_types::LeaseTreatment;
use serde::{Deserialize, Serialize};

use super::datasets::{check_dataset, tightest_of_demanding};
use super::decide::{
    check_class, check_class_is_in_force, check_class_is_known, check_origin, check_origin_is_known, check_terms_cover,
    find_donor, find_tenant,
};
use super::denials::CheckResult;
use super::find_agreement::find_agreement;
use super::rules::find_rule_withdrawal;
use super::{BorrowFacts, Denial, DenyCode, InUse};
use crate::bundle::Bundle;
use crate::documents::on_withdrawal::default_treatment;
use crate::kind::Kind;

/// A lease in force.
#[derive(Clone, Copy, Debug)]
pub struct HeldLease<'f> {
    /// Its GPUs, those of the other leases of its request, its term, and the present time. Limits on these do not withdraw
    /// a permission, but rules may look at them.
    pub facts: BorrowFacts<'f>,
    /// The tenant's institution at the time of the grant. It counts if the tenant is gone.
    pub institution: &'f str,
    /// The agreement that it was granted under; `None` within one institution.
    pub agreement: Option<&'f str>,
}

/// A permission that policy no longer gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// What becomes of the lease: the tightest that a document demands which does not permit it.
    pub treatment: LeaseTreatment,
    /// The reason, by that document.
    pub denial: Denial,
}

/// What removed documents said in `onWithdrawal`, as long as a lease needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RemovedDocuments(BTreeMap<Kind, BTreeMap<String, LeaseTreatment>>);

impl RemovedDocuments {
    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The removed documents once `after` takes the place of `before`, out of those in `needed`, which permit leases.
    #[must_use]
    pub fn after_change<'n>(
        &self,
        before: &Bundle,
        after: &Bundle,
        needed: impl IntoIterator<Item = (Kind, &'n str)>,
    ) -> Self {
        let mut removed = Self::default();
        for (kind, name) in needed {
            if after.on_withdrawal(kind, name).is_some() {
                continue;
            }
            let said = before.on_withdrawal(kind, name).or_else(|| self.get(kind, name));
            if let Some(said) = said.filter(|said| *said != default_treatment(kind)) {
                removed.0.entry(kind).or_default().insert(name.to_owned(), said);
            }
        }
        removed
    }

    fn get(&self, kind: Kind, name: &str) -> Option<LeaseTreatment> {
        self.0.get(&kind)?.get(name).copied()
    }
}

impl Bundle {
    /// What a document says about the leases that it no longer permits; `None` if there is no such document, or if it
    /// permits none.
    fn on_withdrawal(&self, kind: Kind, name: &str) -> Option<LeaseTreatment> {
        match kind {
            Kind::Cluster => self.clusters.get(name).map(|cluster| cluster.spec.on_withdrawal),
            Kind::Tenant => self.tenants.get(name).map(|tenant| tenant.spec.on_withdrawal),
            Kind::GpuClass => self.classes.get(name).map(|class| class.spec.on_withdrawal),
            Kind::Agreement => self.agreements.get(name).map(|agreement| agreement.spec.on_withdrawal),
            Kind::Rule => self.rules.get(name).map(|rule| rule.spec.on_withdrawal),
            Kind::Federation
            | Kind::Institution
            | Kind::Quota
            | Kind::PriorityClass
            | Kind::RequestTemplate
            | Kind::Schedule
            | Kind::Reservation => None,
            Kind::Dataset => self.datasets.get(name).map(|dataset| dataset.spec.on_withdrawal),
        }
    }

    /// The withdrawal of a lease's permission; `None` while policy would still lend something to its tenant from its donor.
    /// Limits on amounts and durations, quotas and `accepting: false` decide about new leases only. Of several documents
    /// that do not permit the lease, the tightest decides, so that neither side can keep the other's word from counting.
    #[must_use]
    pub fn withdrawal(&self, lease: &HeldLease<'_>, removed: &RemovedDocuments) -> Option<Withdrawal> {
        // As little as possible, so that no limit on an amount or a duration denies it.
        let facts =
            BorrowFacts { gpus_milli: 1, beside_milli: 0, duration_ms: 1, in_use: InUse::default(), ..lease.facts };
        let said = |kind, name: &str| {
            let said = self.on_withdrawal(kind, name).or_else(|| removed.get(kind, name));
            said.unwrap_or(default_treatment(kind))
        };
        let mut found = Tightest(None);

        let by_tenant = said(Kind::Tenant, facts.tenant);
        let tenant = found.note(by_tenant, find_tenant(self, &facts));
        found.note(default_treatment(Kind::Institution), check_origin_is_known(self, &facts));
        if let Some(tenant) = tenant {
            found.note(by_tenant, check_origin(&facts, tenant));
            found.note(by_tenant, check_class(&facts, tenant));
        }
        let by_class = said(Kind::GpuClass, facts.class);
        found.note(by_class, check_class_is_known(self, &facts));
        found.note(by_class, check_class_is_in_force(self, &facts));

        let by_donor = said(Kind::Cluster, facts.donor_cluster);
        let donor = found.note(by_donor, find_donor(self, &facts));
        let borrower = tenant.map_or(lease.institution, |tenant| tenant.spec.institution.as_str());
        if let Some(donor) = donor {
            found.note(by_donor, check_terms_cover(self, &facts, borrower, donor));
            for need in facts.data {
                found.note(said(Kind::Dataset, &need.dataset), check_dataset(self, &facts, need, donor));
            }
        }
        let lender = donor.map(|donor| donor.spec.institution.as_str());
        let Some(lender) = lender.or_else(|| self.institution_of_cluster(facts.donor_cluster)) else { return found.0 };
        let granted = lease.agreement.map(|name| said(Kind::Agreement, name));
        let by_agreement = granted.unwrap_or(default_treatment(Kind::Agreement));
        let checked = find_agreement(self, &facts, borrower, lender);
        let by_data = if checked.is_err() { tightest_of_demanding(self, &facts) } else { None };
        let agreement =
            found.note(by_data.map_or(by_agreement, |by_data| by_data.max(by_agreement)), checked).flatten();
        if let (Some(tenant), Some(donor)) = (tenant, donor)
            && let Some((treatment, denial)) = find_rule_withdrawal(self, &lease.facts, (tenant, donor, agreement))
        {
            found.note::<()>(treatment, Err(Box::new(denial)));
        }
        found.0
    }
}

/// The withdrawal that ends a lease first; of equal ones the first found.
struct Tightest(Option<Withdrawal>);

impl Tightest {
    /// Notes a denial by a document that demands a treatment. Schedules always drain: everybody knew their times at the
    /// grant. Limits on amounts and dates that are still ahead withdraw nothing.
    fn note<T>(&mut self, treatment: LeaseTreatment, checked: CheckResult<T>) -> Option<T> {
        let denial = match checked {
            Ok(value) => return Some(value),
            Err(denial) => *denial,
        };
        let treatment = match denial.code {
            DenyCode::OutsideSchedule | DenyCode::ScheduleEndsTooSoon => LeaseTreatment::Drain,
            DenyCode::RequestTooLarge | DenyCode::AgreementEndsTooSoon | DenyCode::AgreementExhausted => return None,
            _ => treatment,
        };
        if self.0.as_ref().is_none_or(|found| treatment > found.treatment) {
            self.0 = Some(Withdrawal { treatment, denial });
        }
        None
    }
}
