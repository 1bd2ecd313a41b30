//! Attempts about members and what they have with each other, and against the line of commits.

use super::{Attempt, change_rule};
use crate::repository::{Repository, document};

/// Puts a quota of polytechnic and one of the centre into a cohort.
pub(crate) fn share(repository: &mut Repository) {
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 8, cohort: lab, borrowingLimit: 2");
    let centre = "institution: centre, maxConcurrentGpus: 4, cohort: lab";
    repository.write("centre-quota.yaml", &document("Quota", "centre", centre));
    let change = repository.commit(Some("poly"), "share quota");
    repository.approve("centre", change);
    repository.take_into_force();
}

pub(super) fn attempts() -> Vec<Attempt> {
    vec![
        (
            "one party widens an agreement",
            |repository| {
                repository.edit("agreement.yaml", "maxGpus: 8", "maxGpus: 800");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Agreement `both` without the signature of institution `centre`: it is signed by institution `poly`",
        ),
        (
            "one party decides alone what becomes of leases that an agreement no longer covers",
            |repository| {
                repository.edit("agreement.yaml", "maxGpus: 8", "maxGpus: 4, onWithdrawal: stop");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Agreement `both` without the signature of institution `centre`: it is signed by institution `poly`",
        ),
        (
            "a maintainer ends an agreement of others",
            |repository| {
                repository.remove("agreement.yaml");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Agreement `both` without the signature of institution `centre` and institution `poly`, or",
        ),
        (
            "an institution gives itself a larger share",
            |repository| {
                repository.edit("poly.yaml", "displayName: X", "displayName: X, weight: 1000");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Institution `poly` without the signature of a maintainer",
        ),
        (
            "an institution admits itself",
            |repository| {
                repository.write("guest.yaml", &document("Institution", "guest", "displayName: G, contact: g@x"));
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Institution `guest` without the signature of a maintainer",
        ),
        (
            "an institution joins the cohort of others",
            |repository| {
                share(repository);
                let keyless = "institution: keyless, maxConcurrentGpus: 4, cohort: lab";
                repository.write("keyless-quota.yaml", &document("Quota", "keyless", keyless));
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Quota `keyless` without the signature of institution `centre` and institution `poly`",
        ),
        (
            "a member of a cohort lets itself borrow more",
            |repository| {
                share(repository);
                repository.edit("quota.yaml", "borrowingLimit: 2", "borrowingLimit: 3");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Quota `ml-large` without the signature of institution `centre`: it is signed by institution `poly`",
        ),
        (
            "an institution gets into a cohort by a tenant that moves to it",
            |repository| {
                share(repository);
                repository.edit("tenant.yaml", "institution: poly", "institution: keyless");
                repository.edit("tenant.yaml", "[poly-farm]", "[keyless-pc]");
                let change = repository.commit(Some("poly"), "x");
                repository.approve("ingrid", change);
            },
            "unsigned",
            "changes Tenant `ml` without the signature of institution `centre`",
        ),
        (
            "a tenant is moved to another institution by the one that gets it",
            |repository| {
                repository.edit("tenant.yaml", "institution: poly", "institution: centre");
                repository.edit("tenant.yaml", "[poly-farm]", "[centre-main]");
                repository.commit(Some("centre"), "x");
            },
            "unsigned",
            "changes Tenant `ml` without the signature of institution `poly`",
        ),
        (
            "a maintainer removes an institution and admits it with other keys",
            |repository| {
                for file in ["poly.yaml", "tenant.yaml", "quota.yaml", "agreement.yaml"] {
                    repository.remove(file);
                }
                repository.edit("cluster.yaml", "lends: [{classes: [large], to: {institutions: [poly]}}]", "lends: []");
                repository.commit(Some("ingrid"), "x");
                let keys = format!("displayName: X, contact: a@x, commitKeys: [{{key: {}}}]", repository.key("eve"));
                repository.write("poly.yaml", &document("Institution", "poly", &keys));
                repository.commit(Some("ingrid"), "y");
            },
            "unsigned",
            "changes Institution `poly` without the signature of 2 maintainers (it has 1)",
        ),
        (
            "the same after the removal came into force",
            |repository| {
                repository.taken_names.insert("Institution/guest".to_owned());
                repository.write("guest.yaml", &document("Institution", "guest", "displayName: G, contact: g@x"));
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Institution `guest` without the signature of 2 maintainers (it has 1)",
        ),
        (
            "a maintainer changes more than names when an institution is removed",
            |repository| {
                for file in ["poly.yaml", "tenant.yaml", "quota.yaml", "agreement.yaml"] {
                    repository.remove(file);
                }
                let term = "lends: [{classes: [large], to: {institutions: [poly]}}]";
                repository.edit("cluster.yaml", term, "lends: [{classes: [large]}]");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`",
        ),
        (
            "an older commit",
            |repository| {
                change_rule(repository);
                repository.commit(Some("otto"), "x");
                repository.take_into_force();
                repository.git(&["reset", "--quiet", "--hard", "HEAD^"]);
            },
            "rollback",
            "is older than",
        ),
        (
            "a branch pushed by force, with the same documents",
            |repository| {
                repository.git(&["commit", "--quiet", "--amend", "--allow-empty", "-m", "another first"]);
            },
            "diverged",
            "does not descend from",
        ),
        (
            "a merge that keeps nothing of the commit in force",
            |repository| {
                change_rule(repository);
                repository.commit(Some("otto"), "x");
                repository.take_into_force();
                repository.git(&["checkout", "--quiet", "-b", "old", "HEAD^"]);
                repository.commit(None, "from before");
                repository.git(&["merge", "--quiet", "--strategy", "ours", "-m", "Merge", "main"]);
            },
            "unsigned",
            "changes Rule `short` without the signature of a maintainer: it is not signed",
        ),
        (
            "documents that do not compile",
            |repository| {
                repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: two");
                repository.commit(Some("centre"), "x");
            },
            "invalid",
            "has problems: 1, first cluster.yaml:4",
        ),
        (
            "no folder",
            |repository| {
                repository.git(&["mv", "policy", "elsewhere"]);
                repository.git(&["commit", "--quiet", "-m", "x"]);
            },
            "invalid",
            "has no folder `policy`",
        ),
        (
            "a link in place of a file",
            |repository| {
                std::os::unix::fs::symlink("/etc/passwd", repository.path().join("policy/passwd.yaml")).unwrap();
                repository.commit(Some("ingrid"), "x");
            },
            "invalid",
            "`passwd.yaml` is a link",
        ),
    ]
}
