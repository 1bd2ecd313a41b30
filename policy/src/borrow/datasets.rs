//! Whether the datasets of a request may go to a donor, for its purpose and under its agreement.
//!
//! A Dataset only denies: a request that names a dataset with a document is denied wherever the document does not name
//! the donor, and under each agreement that does not allow its data.

use comity_types::{DataNeed, LeaseTreatment};

use super::citations::Citations;
use super::denials::{CheckResult, deny};
use super::{BorrowFacts, Denial, DenyCode};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, Dataset, Document};
use crate::problem::nearest;

impl Bundle {
    /// Why no donor may serve a request that reads these datasets for this purpose: the federation does not know the
    /// purpose, or demands a document for each dataset, or a dataset may not be read for it. An empty purpose is none.
    ///
    /// # Errors
    /// The first reason, with its remedy.
    pub fn check_purpose(&self, purpose: &str, data: &[DataNeed]) -> Result<(), Box<Denial>> {
        let known = &self.federation.spec.data.purposes;
        if !purpose.is_empty() && !known.contains(purpose) {
            let by = self.federation.cite("data.purposes");
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            let unblock = match nearest(purpose, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if names.is_empty() => format!("leave it out; a maintainer can add purposes to {by}"),
                None => format!("state one of: {}", names.join(", ")),
            };
            let message = format!("`{purpose}` is not a purpose of this federation");
            return deny(DenyCode::PurposeNotAllowed, message, unblock, vec![by]);
        }
        data.iter().try_for_each(|need| {
            let dataset = self.dataset_of(need)?;
            dataset.map_or(Ok(()), |dataset| self.check_purpose_of(dataset, purpose))
        })
    }

    /// The document of a dataset; `None` if it has none and needs none.
    fn dataset_of(&self, need: &DataNeed) -> CheckResult<Option<&Document<Dataset>>> {
        let found = self.datasets.get(&need.dataset);
        if found.is_some() || !self.federation.spec.data.declared_only {
            return Ok(found);
        }
        let by = self.federation.cite("data.datasets");
        let message = format!("no document declares dataset `{}`, and this federation allows no others", need.dataset);
        // Names of others' datasets are not for everybody who may submit requests, so that none is suggested.
        let unblock = "correct the name, or ask its owner to add a Dataset document";
        deny(DenyCode::DatasetUndeclared, message, unblock, vec![by])
    }

    fn check_purpose_of(&self, dataset: &Document<Dataset>, purpose: &str) -> CheckResult<()> {
        let purposes = &dataset.spec.purposes;
        if purposes.is_empty() || purposes.contains(purpose) {
            return Ok(());
        }
        let by = dataset.cite("purposes");
        let words: Vec<&str> = purposes.iter().map(String::as_str).collect();
        let words = words.join(" or ");
        let (message, unblock) = if purpose.is_empty() {
            let message =
                format!("dataset `{}` may be read for {words} only, and the request states no purpose", dataset.name);
            (message, format!("state the purpose of the request: {words}"))
        } else {
            let message = format!("dataset `{}` may be read for {words} only, not for {purpose}", dataset.name);
            (message, format!("read other data, or ask {} to add `{purpose}` to {by}", self.owner_of(dataset)))
        };
        deny(DenyCode::PurposeNotAllowed, message, unblock, vec![by])
    }

    /// The contact of a dataset's owner.
    fn owner_of(&self, dataset: &Document<Dataset>) -> &str {
        let owner = self.institutions.get(&dataset.spec.institution);
        owner.map_or("its institution", |owner| owner.spec.contact.as_str())
    }
}

/// Denies if a dataset may not be read at the donor, or not for the purpose.
pub(super) fn check_datasets(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    donor: &Document<Cluster>,
    citations: &mut Citations,
) -> CheckResult<()> {
    for need in facts.data {
        if let Some(dataset) = check_dataset(bundle, facts, need, donor)? {
            citations.push(|| dataset.cite("mayGoTo"));
        }
    }
    Ok(())
}

pub(super) fn check_dataset<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    need: &DataNeed,
    donor: &Document<Cluster>,
) -> CheckResult<Option<&'b Document<Dataset>>> {
    let Some(dataset) = bundle.dataset_of(need)? else { return Ok(None) };
    bundle.check_purpose_of(dataset, facts.purpose)?;
    if dataset.spec.may_go_to(&donor.name, &donor.spec.institution) {
        return Ok(Some(dataset));
    }
    let by = dataset.cite("mayGoTo");
    let message = format!("dataset `{}` may not go to `{}` of `{}`", dataset.name, donor.name, donor.spec.institution);
    let unblock = format!("ask {} to add it to `mayGoTo` of {by}", bundle.owner_of(dataset));
    deny(DenyCode::DatasetNotAllowed, message, unblock, vec![by])
}

/// The datasets of a request whose documents demand an agreement that allows their data.
pub(super) fn demanding<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
) -> impl Iterator<Item = &'b Document<Dataset>> {
    let declared = facts.data.iter().filter_map(|need| bundle.datasets.get(&need.dataset));
    declared.filter(|dataset| dataset.spec.needs_agreement_on_data())
}

/// Denies if an agreement does not allow the data of a request.
pub(super) fn check_agreement_allows_data(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    agreement: &Document<Agreement>,
) -> CheckResult<()> {
    for dataset in demanding(bundle, facts) {
        let (allowed, name) = (&agreement.spec.data, &agreement.name);
        if dataset.spec.personal_data && !allowed.personal {
            let (by, of) = (agreement.cite("data"), dataset.cite("personalData"));
            let message = format!("agreement `{name}` allows no personal data, which dataset `{}` has", dataset.name);
            let unblock = format!("read other data, or the institutions can set `data.personal: true` in {by}");
            return deny(DenyCode::AgreementExcludesData, message, unblock, vec![by, of]);
        }
        if !dataset.spec.purposes.is_empty() && !allowed.purposes.contains(facts.purpose) {
            let (by, of) = (agreement.cite("data"), dataset.cite("purposes"));
            let message = format!(
                "agreement `{name}` does not allow to read data for {}, and dataset `{}` demands that",
                facts.purpose, dataset.name
            );
            let unblock = format!("the institutions can add `{}` to `data.purposes` of {by}", facts.purpose);
            return deny(DenyCode::AgreementExcludesData, message, unblock, vec![by, of]);
        }
    }
    Ok(())
}

/// Cites what an agreement says about data, if a dataset demands it.
pub(super) fn cite_agreement(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    agreement: &Document<Agreement>,
    citations: &mut Citations,
) {
    if demanding(bundle, facts).next().is_some() {
        citations.push(|| agreement.cite("data"));
    }
}

/// The tightest `onWithdrawal` of the datasets that demand an agreement on their data.
pub(super) fn tightest_of_demanding(bundle: &Bundle, facts: &BorrowFacts<'_>) -> Option<LeaseTreatment> {
    demanding(bundle, facts).map(|dataset| dataset.spec.on_withdrawal).max()
}
