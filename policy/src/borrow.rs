//! Whether a tenant may borrow from a donor: the facts of a lease, the decision and its reasons.

use std::collections::BTreeMap;
use std::fmt;

use comity_types::{DataNeed, Delivery};
use serde::{Deserialize, Serialize};

use crate::documents::{DocRef, QuotaSubject};

pub use cohort_debt::QuotaDebt;
pub use cohort_terms::CohortTerms;
pub use cohort_use::CohortUse;
pub use data_read::DataRead;
pub use gpu_time::{Booking, GpuTimeTable, LimitKey};
pub use quota_use::{CohortShare, QuotaUse};
pub use rules::PreferenceFacts;
pub use usage::{DonorUse, LeaseUse, UsageTable};
pub use waiting_claims::WaitingClaims;
pub use withdrawal::{HeldLease, RemovedDocuments, Withdrawal};

mod citations;
mod cohort_debt;
mod cohort_standing;
mod cohort_terms;
mod cohort_use;
mod data_read;
mod datasets;
mod decide;
mod denials;
mod find_agreement;
mod gpu_time;
mod quota_use;
mod rules;
mod schedules;
mod usage;
mod waiting_claims;
mod withdrawal;

/// A proposed lease: a tenant at an origin borrows GPUs of one class from one donor.
#[derive(Clone, Copy, Debug)]
pub struct BorrowFacts<'f> {
    /// The borrowing tenant.
    pub tenant: &'f str,
    /// Who submits the request; empty if unknown, so that limits on each user do not count.
    pub user: &'f str,
    /// The cluster of the request.
    pub origin_cluster: &'f str,
    /// The cluster that would lend.
    pub donor_cluster: &'f str,
    /// The class of the GPUs.
    pub class: &'f str,
    /// GPUs of the lease, in milli-GPU; at least 1.
    pub gpus_milli: u64,
    /// GPUs of other leases of the same request, in milli-GPU. Limits per request count them too.
    pub beside_milli: u64,
    /// Delivery of the lease to the origin.
    pub delivery: Delivery,
    /// Duration of the lease, in milliseconds; at least 1.
    pub duration_ms: u64,
    /// Notice with which the lease may be reclaimed when a [`Schedule`](crate::Schedule) ends its permission, in
    /// milliseconds; `None` if it has to run for its whole duration.
    pub notice_ms: Option<u64>,
    /// Time of the log entry, in milliseconds since 1970.
    pub now_ms: u64,
    /// Datasets that the work of the lease reads.
    pub data: &'f [DataNeed],
    /// The purpose for which it reads them; empty for none.
    pub purpose: &'f str,
    /// GPUs in use now, without this lease.
    pub in_use: InUse<'f>,
}

impl BorrowFacts<'_> {
    /// The GPU-time that the lease books.
    pub(crate) fn booking(&self) -> Booking<'_> {
        let (gpus_milli, until_ms, most_ms) = match self.in_use.gpu_time {
            Some(known) => (known.gpus_milli, known.until_ms, known.most_ms),
            None => (self.gpus_milli, self.now_ms.saturating_add(self.duration_ms), self.duration_ms),
        };
        let (tenant, user, class, from_ms) = (self.tenant, self.user, self.class, self.now_ms);
        Booking { tenant, user, class, gpus_milli, from_ms, until_ms, most_ms }
    }

    /// GPUs of the whole request, with this lease, in milli-GPU.
    pub(crate) const fn request_milli(&self) -> u64 {
        self.gpus_milli.saturating_add(self.beside_milli)
    }
}

/// GPUs in use that limits on a lease count; see [`UsageTable::in_use`]. The default is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct InUse<'f> {
    /// Borrowed by the tenant, by class, in milli-GPU; `None` for no leases.
    pub by_tenant: Option<&'f BTreeMap<String, u64>>,
    /// Borrowed by all tenants of the institution, by class.
    pub by_institution: Option<&'f BTreeMap<String, u64>>,
    /// Borrowed by the tenant for requests of the user, by class.
    pub by_tenant_user: Option<&'f BTreeMap<String, u64>>,
    /// Borrowed by all tenants of the institution for requests of the user, by class.
    pub by_institution_user: Option<&'f BTreeMap<String, u64>>,
    /// Use of the shared quotas of cohorts; `None` for none.
    pub cohorts: Option<&'f CohortUse>,
    /// Lent by the donor; `None` for no leases.
    pub lent_by_donor: Option<&'f DonorUse>,
    /// Lent under each agreement, in milli-GPU; `None` for no leases.
    pub lent_under_agreement: Option<&'f BTreeMap<String, u64>>,
    /// GPU-time; `None` for none.
    pub gpu_time: Option<GpuTimeFacts<'f>>,
}

/// GPU-time that limits on a lease count.
#[derive(Clone, Copy, Debug)]
pub struct GpuTimeFacts<'f> {
    /// What other leases have used and booked.
    pub booked: &'f GpuTimeTable,
    /// GPUs that the lease books, in milli-GPU; less than it has, where it replaces another one.
    pub gpus_milli: u64,
    /// The latest end of the lease, in milliseconds since 1970.
    pub until_ms: u64,
    /// The longest time that it books, in milliseconds.
    pub most_ms: u64,
}

/// The sum over the classes that count, in milli-GPU.
pub(crate) fn milli_of(by_class: Option<&BTreeMap<String, u64>>, counts: impl Fn(&str) -> bool) -> u64 {
    let counted = by_class.into_iter().flatten().filter(|(class, _)| counts(class));
    counted.fold(0, |sum, (_, milli)| sum.saturating_add(*milli))
}

impl InUse<'_> {
    /// GPUs borrowed by the tenant, in milli-GPU.
    #[must_use]
    pub fn tenant_milli(&self) -> u64 {
        milli_of(self.by_tenant, |_| true)
    }

    /// What a quota on `subject` counts, by class; for a limit on each user what the user has.
    pub(crate) fn of_quota(&self, subject: &QuotaSubject, per_user: bool) -> Option<&BTreeMap<String, u64>> {
        match (subject, per_user) {
            (QuotaSubject::Tenant(_), false) => self.by_tenant,
            (QuotaSubject::Tenant(_), true) => self.by_tenant_user,
            (QuotaSubject::Institution(_), false) => self.by_institution,
            (QuotaSubject::Institution(_), true) => self.by_institution_user,
        }
    }

    /// GPUs lent by the donor, in milli-GPU.
    #[must_use]
    pub fn lent_by_donor_milli(&self) -> u64 {
        milli_of(self.lent_by_donor.map(|lent| &lent.by_class), |_| true)
    }

    /// GPUs lent by the donor, in milli-GPU, of classes and to tenants that count; `None` for all tenants.
    pub(crate) fn lent_by_donor_of(
        &self,
        class_counts: impl Fn(&str) -> bool,
        tenant_counts: Option<impl Fn(&str) -> bool>,
    ) -> u64 {
        let Some(lent) = self.lent_by_donor else { return 0 };
        let Some(tenant_counts) = tenant_counts else { return milli_of(Some(&lent.by_class), class_counts) };
        let tenants = lent.by_tenant.iter().filter(|(tenant, _)| tenant_counts(tenant));
        tenants.fold(0, |sum, (_, by_class)| sum.saturating_add(milli_of(Some(by_class), &class_counts)))
    }

    /// GPUs lent under an agreement, in milli-GPU.
    #[must_use]
    pub fn lent_under_agreement_milli(&self, agreement: &str) -> u64 {
        self.lent_under_agreement.and_then(|sums| sums.get(agreement)).copied().unwrap_or(0)
    }
}

/// The answer to [`Bundle::may_borrow`](crate::Bundle::may_borrow).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The tenant may borrow.
    Allow(Allowance),
    /// The tenant may not borrow.
    Deny(Denial),
}

impl Decision {
    /// The denial, if it is one.
    #[must_use]
    pub const fn denial(&self) -> Option<&Denial> {
        match self {
            Self::Allow(_) => None,
            Self::Deny(denial) => Some(denial),
        }
    }
}

/// The reasons for an allowed lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// The agreement that counts the lease; `None` within one institution.
    pub agreement: Option<String>,
    /// The documents and lines behind the decision.
    pub because: Vec<DocRef>,
}

/// The reason for a denied lease, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// Stable code, for scripts.
    pub code: DenyCode,
    /// The reason, with names and amounts.
    pub message: String,
    /// The remedy: a person to ask, a field to change or an event to wait for.
    pub unblock: String,
    /// The documents and lines behind the decision.
    pub by: Vec<DocRef>,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; {}", self.message, self.code, self.unblock)
    }
}

/// The stable code of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DenyCode {
    /// The amount of GPUs or the duration is zero.
    InvalidAmount,
    /// No such tenant.
    UnknownTenant,
    /// No institution may enrol the origin.
    UnknownOrigin,
    /// The tenant may not send requests from this origin.
    OriginNotAllowed,
    /// No such class.
    UnknownClass,
    /// The tenant may not request this class.
    ClassNotAllowed,
    /// More GPUs than the federation, or a quota, allows in one request, or than an agreement, a quota or the donor
    /// ever allows.
    RequestTooLarge,
    /// Longer than the federation, a quota or the donor allows.
    LeaseTooLong,
    /// The cluster has no donor terms.
    UnknownDonor,
    /// Origin and donor are the same cluster.
    SameCluster,
    /// The donor accepts no new leases now.
    DonorNotAccepting,
    /// The donor does not deliver leases this way.
    NoDelivery,
    /// The donor does not lend this class.
    ClassNotLent,
    /// The donor does not lend this class to this tenant.
    BorrowerNotServed,
    /// No agreement lets the tenant's institution borrow this class from the donor's.
    NoAgreement,
    /// The agreement has not begun.
    AgreementNotBegun,
    /// The agreement has ended.
    AgreementEnded,
    /// The lease would outlive the agreement.
    AgreementEndsTooSoon,
    /// The limit of the agreement is in use.
    AgreementExhausted,
    /// The request names a dataset without a document, and the federation allows only declared ones.
    DatasetUndeclared,
    /// A dataset may not be read for the purpose of the request, or the request states none.
    PurposeNotAllowed,
    /// A dataset may not go to the donor.
    DatasetNotAllowed,
    /// The agreement does not allow the personal data, or the purpose, of a dataset.
    AgreementExcludesData,
    /// A rule denies the lease, or requires something that it lacks.
    Rule,
    /// The class, or the donor's term, is not in force at this time of the week.
    OutsideSchedule,
    /// The class, or the donor's term, ends to be in force before the lease would end.
    ScheduleEndsTooSoon,
    /// A quota is in use, with all that it may borrow of its cohort.
    QuotaExhausted,
    /// The quota has what the request needs, and other members of its cohort have borrowed it.
    QuotaLent,
    /// The request needs more than its quota has, and the cohort has not enough that is idle.
    CohortExhausted,
    /// The GPU-hours of a quota are used or reserved.
    GpuHoursExhausted,
    /// The limit of the donor or of its lending term is in use.
    DonorExhausted,
}

impl DenyCode {
    /// The code in kebab case, as output and the documentation show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidAmount => "invalid-amount",
            Self::UnknownTenant => "unknown-tenant",
            Self::UnknownOrigin => "unknown-origin",
            Self::OriginNotAllowed => "origin-not-allowed",
            Self::UnknownClass => "unknown-class",
            Self::ClassNotAllowed => "class-not-allowed",
            Self::RequestTooLarge => "request-too-large",
            Self::LeaseTooLong => "lease-too-long",
            Self::UnknownDonor => "unknown-donor",
            Self::SameCluster => "same-cluster",
            Self::DonorNotAccepting => "donor-not-accepting",
            Self::NoDelivery => "no-delivery",
            Self::ClassNotLent => "class-not-lent",
            Self::BorrowerNotServed => "borrower-not-served",
            Self::NoAgreement => "no-agreement",
            Self::AgreementNotBegun => "agreement-not-begun",
            Self::AgreementEnded => "agreement-ended",
            Self::AgreementEndsTooSoon => "agreement-ends-too-soon",
            Self::AgreementExhausted => "agreement-exhausted",
            Self::DatasetUndeclared => "dataset-undeclared",
            Self::PurposeNotAllowed => "purpose-not-allowed",
            Self::DatasetNotAllowed => "dataset-not-allowed",
            Self::AgreementExcludesData => "agreement-excludes-data",
            Self::Rule => "rule",
            Self::OutsideSchedule => "outside-schedule",
            Self::ScheduleEndsTooSoon => "schedule-ends-too-soon",
            Self::QuotaExhausted => "quota-exhausted",
            Self::QuotaLent => "quota-lent",
            Self::CohortExhausted => "cohort-exhausted",
            Self::GpuHoursExhausted => "gpu-hours-exhausted",
            Self::DonorExhausted => "donor-exhausted",
        }
    }

    /// Whether the denial can go away without a change of policy, because leases end, periods of quotas and agreements
    /// begin, and schedules open.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(
            self,
            Self::AgreementNotBegun
                | Self::AgreementExhausted
                | Self::OutsideSchedule
                | Self::ScheduleEndsTooSoon
                | Self::QuotaExhausted
                | Self::QuotaLent
                | Self::CohortExhausted
                | Self::GpuHoursExhausted
                | Self::DonorExhausted
        )
    }
}

impl fmt::Display for DenyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
