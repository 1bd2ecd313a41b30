//! Attempts to widen where an institution's data may go, or for what it may be read.

use super::Attempt;
use crate::repository::{Repository, document};

/// The terms of poly's dataset with personal data.
pub(crate) const SCANS: &str = "institution: poly, mayGoTo: {institutions: [poly, centre], clusters: [centre-main]}, \
     personalData: true, purposes: [research]";

/// Puts a dataset of poly into force, and an agreement of poly and centre that allows some of its data.
pub(crate) fn share_data(repository: &mut Repository) {
    repository.edit("federation.yaml", "signatures:", "data: {purposes: [research, teaching]}, signatures:");
    repository.commit(Some("ingrid"), "purposes");
    repository.write("scans.yaml", &document("Dataset", "scans", SCANS));
    repository.commit(Some("poly"), "a dataset");
    repository.edit("agreement.yaml", "maxGpus: 8", "maxGpus: 8, data: {purposes: [research]}");
    let change = repository.commit(Some("poly"), "its purpose");
    repository.approve("centre", change);
    repository.take_into_force();
}

const OF_POLY: &str = "changes Dataset `scans` without the signature of institution `poly`";

pub(super) fn attempts() -> Vec<Attempt> {
    vec![
        (
            "a maintainer lets an institution's dataset go to others",
            |repository| {
                share_data(repository);
                repository.edit("scans.yaml", "[poly, centre]", "[poly, centre, keyless]");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
        (
            "an institution says that the data of another one is not personal",
            |repository| {
                share_data(repository);
                repository.edit("scans.yaml", "personalData: true", "personalData: false");
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            "changes Dataset `scans` without the signature of institution `poly`: it is signed by institution `centre`",
        ),
        (
            "an institution allows a purpose for the data of another one",
            |repository| {
                share_data(repository);
                repository.edit("scans.yaml", "purposes: [research]", "purposes: [research, teaching]");
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
        (
            "a maintainer removes a dataset, so that nothing restricts it",
            |repository| {
                share_data(repository);
                repository.remove("scans.yaml");
                repository.commit(Some("otto"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
        (
            "an institution makes the dataset of another one its own",
            |repository| {
                share_data(repository);
                repository.edit("scans.yaml", "institution: poly,", "institution: centre,");
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
        (
            "an institution declares a dataset as that of another one",
            |repository| {
                repository.write("scans.yaml", &document("Dataset", "scans", "institution: poly"));
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
        (
            "one party lets an agreement serve personal data",
            |repository| {
                share_data(repository);
                repository.edit("agreement.yaml", "purposes:", "personal: true, purposes:");
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            "changes Agreement `both` without the signature of institution `poly`: it is signed by institution `centre`",
        ),
        (
            "one party lets an agreement serve another purpose",
            |repository| {
                share_data(repository);
                repository.edit("agreement.yaml", "purposes: [research]", "purposes: [research, teaching]");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Agreement `both` without the signature of institution `centre`: it is signed by institution `poly`",
        ),
        (
            "a maintainer keeps a dataset from more than the institution that is removed",
            |repository| {
                share_data(repository);
                repository.remove("centre.yaml");
                repository.remove("cluster.yaml");
                repository.remove("agreement.yaml");
                repository.write("scans.yaml", &document("Dataset", "scans", "institution: poly"));
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            OF_POLY,
        ),
    ]
}
