//! Attempts to get what an institution had that leaves.

use super::{Attempt, each_is_refused};
use crate::repository::{Repository, document};

/// Removes institution `centre` with all that is its own.
pub(crate) fn leave_without_centre(repository: &Repository) {
    for file in ["centre.yaml", "cluster.yaml", "agreement.yaml"] {
        repository.remove(file);
    }
}

/// Gives the cluster of institution `centre` to one that has no keys.
pub(crate) fn give_cluster_to_keyless(repository: &Repository) {
    repository.edit("keyless.yaml", "[keyless-pc]", "[keyless-pc, centre-main]");
    let terms = "institution: keyless, lends: [{classes: [large], to: {institutions: [poly]}}]";
    repository.write("cluster.yaml", &document("Cluster", "centre-main", terms));
}

fn attempts() -> Vec<Attempt> {
    vec![
        (
            "a maintainer removes an institution, and gives its cluster to another one",
            |repository| {
                leave_without_centre(repository);
                repository.commit(Some("ingrid"), "x");
                give_cluster_to_keyless(repository);
                repository.commit(Some("ingrid"), "y");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of 2 maintainers (it has 1)",
        ),
        (
            "the same in one commit, with another one after it",
            |repository| {
                leave_without_centre(repository);
                give_cluster_to_keyless(repository);
                repository.commit(Some("ingrid"), "x");
                repository.commit(Some("ingrid"), "y");
            },
            "unsigned",
            "changes Institution `keyless` without the signature of 2 maintainers (it has 1)",
        ),
        (
            "the same in one commit, for a cluster that lends nothing yet",
            |repository| {
                leave_without_centre(repository);
                repository.edit("keyless.yaml", "[keyless-pc]", "[keyless-pc, centre-main]");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Institution `keyless` without the signature of institution `centre`: it is signed by maintainer ingrid",
        ),
        (
            "another institution takes the cluster of one that left earlier",
            |repository| {
                repository.taken_names.insert("Cluster/lone-farm".to_owned());
                repository.edit("poly.yaml", "[poly-farm]", "[poly-farm, lone-farm]");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Institution `poly` without the signature of 2 maintainers (it has 0)",
        ),
        (
            "a maintainer gives the tenant of an institution that left to another one",
            |repository| {
                for file in ["poly.yaml", "tenant.yaml", "quota.yaml", "agreement.yaml"] {
                    repository.remove(file);
                }
                repository.edit("cluster.yaml", "lends: [{classes: [large], to: {institutions: [poly]}}]", "lends: []");
                repository.commit(Some("ingrid"), "x");
                let tenant = "institution: keyless, classes: [large], members: [{id: spiffe://t.example/user/eve, role: submitter}]";
                repository
                    .write("tenant.yaml", &document("Tenant", "ml", &format!("{tenant}, clusters: [keyless-pc]")));
                repository.commit(Some("ingrid"), "y");
            },
            "unsigned",
            "changes Tenant `ml` without the signature of 2 maintainers (it has 1)",
        ),
    ]
}

#[test]
fn nobody_takes_what_an_institution_had_that_left() {
    each_is_refused(&attempts());
}
