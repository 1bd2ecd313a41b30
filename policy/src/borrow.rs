//! May a tenant borrow? One pure question with a reasoned answer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::documents::{DeliveryKind, DocRef};

mod agreements;
mod decide;

/// What is asked: a tenant at an origin wants GPUs of one class from one donor, for a time.
#[derive(Clone, Copy, Debug)]
pub struct BorrowFacts<'f> {
    /// The tenant.
    pub tenant: &'f str,
    /// The cluster the request comes from.
    pub origin_cluster: &'f str,
    /// The cluster that would lend.
    pub donor_cluster: &'f str,
    /// The class of the GPUs.
    pub class: &'f str,
    /// All GPUs that the lease would hold, in milli-GPU; at least 1.
    pub gpus_milli: u64,
    /// What the same request holds by other leases, in milli-GPU: limits on one request count it too.
    pub beside_milli: u64,
    /// How the lease would reach the origin.
    pub delivery: DeliveryKind,
    /// How long the lease would run, in milliseconds; at least 1.
    pub duration_ms: u64,
    /// Log time, in milliseconds since 1970.
    pub now_ms: u64,
    /// What is in use now, without this request.
    pub in_use: InUse<'f>,
}

/// What is borrowed and lent now; see [`UsageTable::in_use`](crate::UsageTable::in_use). The default is: nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct InUse<'f> {
    /// Borrowed by the tenant, all classes, in milli-GPU.
    pub tenant_milli: u64,
    /// Borrowed by the tenant of this class, in milli-GPU.
    pub tenant_class_milli: u64,
    /// Borrowed by all tenants of the institution, all classes, in milli-GPU.
    pub institution_milli: u64,
    /// Borrowed by all tenants of the institution of this class, in milli-GPU.
    pub institution_class_milli: u64,
    /// Lent by the donor, by tenant and class, in milli-GPU; `None` if nothing.
    pub lent_by_donor: Option<&'f BTreeMap<String, BTreeMap<String, u64>>>,
    /// Lent under each agreement, in milli-GPU; `None` if nothing.
    pub lent_under_agreement: Option<&'f BTreeMap<String, u64>>,
}

impl InUse<'_> {
    /// All that the donor lends, in milli-GPU.
    #[must_use]
    pub fn lent_by_donor_milli(&self) -> u64 {
        self.lent_by_donor_where(|_, _| true)
    }

    /// What the donor lends to the tenants and in the classes that `counts` names, in milli-GPU.
    pub(crate) fn lent_by_donor_where(&self, counts: impl Fn(&str, &str) -> bool) -> u64 {
        let leases = self.lent_by_donor.into_iter().flatten();
        leases
            .flat_map(|(tenant, by_class)| by_class.iter().map(move |(class, milli)| (tenant, class, milli)))
            .filter(|(tenant, class, _)| counts(tenant, class))
            .fold(0, |sum, (_, _, milli)| sum.saturating_add(*milli))
    }

    /// What is lent under an agreement, in milli-GPU.
    #[must_use]
    pub fn lent_under_agreement_milli(&self, agreement: &str) -> u64 {
        self.lent_under_agreement.and_then(|sums| sums.get(agreement)).copied().unwrap_or(0)
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It may.
    Allow(Allowance),
    /// It may not.
    Deny(Denial),
}

impl Decision {
    /// Whether it may.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The denial, if it is one.
    #[must_use]
    pub const fn denial(&self) -> Option<&Denial> {
        match self {
            Self::Allow(_) => None,
            Self::Deny(denial) => Some(denial),
        }
    }
}

/// Why it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// The agreement the lease counts against; `None` within one institution.
    pub agreement: Option<String>,
    /// The documents and lines behind it.
    pub because: Vec<DocRef>,
}

/// Why it may not, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// The stable code.
    pub code: DenyCode,
    /// Why, with names and amounts.
    pub message: String,
    /// What would unblock it: whom to ask, what to change, what to wait for.
    pub unblock: String,
    /// The documents and lines behind it.
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
    /// No GPUs, or no time, are asked for.
    InvalidAmount,
    /// No such tenant.
    UnknownTenant,
    /// No institution may enrol the origin.
    UnknownOrigin,
    /// The tenant may not send requests from this origin.
    OriginNotAllowed,
    /// No such class.
    UnknownClass,
    /// The tenant may not ask for this class.
    ClassNotAllowed,
    /// More GPUs than the federation, or a quota, allows in one request.
    RequestTooLarge,
    /// Longer than the federation, a quota or the donor allows.
    LeaseTooLong,
    /// The cluster has no donor terms.
    UnknownDonor,
    /// A cluster does not borrow from itself.
    SameCluster,
    /// The donor takes no new leases now.
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
    /// All that the agreement covers is in use.
    AgreementExhausted,
    /// A quota is used up.
    QuotaExhausted,
    /// All that the donor lends is in use.
    DonorExhausted,
}

impl DenyCode {
    /// The code as it is written in output: kebab case.
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
            Self::QuotaExhausted => "quota-exhausted",
            Self::DonorExhausted => "donor-exhausted",
        }
    }

    /// Whether waiting can help: leases end and agreements begin, without a change of policy.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::AgreementNotBegun | Self::AgreementExhausted | Self::QuotaExhausted | Self::DonorExhausted)
    }
}

impl fmt::Display for DenyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
