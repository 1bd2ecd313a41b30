//! The fields that conditions of rules read, and their values.

use cel::common::types::CelList;
use cel::common::value::Val;
use comity_types::DataNeed;

use super::{QuantityValue, number, text};

/// A field of a variable of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleField {
    RequestOrigin,
    RequestGpus,
    RequestDurationSeconds,
    RequestDelivery,
    RequestData,
    RequestPurpose,
    TenantName,
    TenantWeight,
    InstitutionName,
    InstitutionRegion,
    InstitutionWeight,
    DonorName,
    DonorInstitution,
    DonorRegion,
    ClassName,
    ClassRank,
    ClassPriceCredits,
    LeaseAgreement,
    LeaseGpus,
}

/// The value of a field. Unknown texts are empty, unknown numbers 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleValue<'f> {
    Text(&'f str),
    Int(i64),
    Quantity(QuantityValue),
    /// Names of datasets.
    Datasets(&'f [DataNeed]),
}

impl RuleField {
    /// The field that `variable.field` means.
    pub(crate) fn named(variable: &str, field: &str) -> Option<Self> {
        Some(match (variable, field) {
            ("request", "origin") => Self::RequestOrigin,
            ("request", "gpus") => Self::RequestGpus,
            ("request", "durationSeconds") => Self::RequestDurationSeconds,
            ("request", "delivery") => Self::RequestDelivery,
            ("request", "data") => Self::RequestData,
            ("request", "purpose") => Self::RequestPurpose,
            ("tenant", "name") => Self::TenantName,
            ("tenant", "weight") => Self::TenantWeight,
            ("institution", "name") => Self::InstitutionName,
            ("institution", "region") => Self::InstitutionRegion,
            ("institution", "weight") => Self::InstitutionWeight,
            ("donor", "name") => Self::DonorName,
            ("donor", "institution") => Self::DonorInstitution,
            ("donor", "region") => Self::DonorRegion,
            ("class", "name") => Self::ClassName,
            ("class", "rank") => Self::ClassRank,
            ("class", "priceCredits") => Self::ClassPriceCredits,
            ("lease", "agreement") => Self::LeaseAgreement,
            ("lease", "gpus") => Self::LeaseGpus,
            _ => return None,
        })
    }
}

impl<'f> RuleValue<'f> {
    /// A number that is not negative.
    pub(crate) fn whole(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }

    /// As the interpreter has it.
    pub(crate) fn boxed(self) -> Box<dyn Val + 'f> {
        match self {
            Self::Text(value) => text(value),
            Self::Int(value) => number(value),
            Self::Quantity(value) => Box::new(value),
            Self::Datasets(needs) => {
                let names = needs.iter().map(|need| text(&need.dataset)).collect::<Vec<Box<dyn Val + 'f>>>();
                Box::new(CelList::from(names))
            }
        }
    }
}
