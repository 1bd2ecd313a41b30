//! Attempts to bring back by a merge what an owner signed before a later change of the same document.

use super::{Attempt, change_cluster, each_is_refused};
use crate::repository::Repository;

/// Begins a merge of branch `proposal`, with its version of the cluster's terms.
fn take_proposal(repository: &Repository) {
    repository.try_git(&["merge", "--quiet", "--no-ff", "--no-commit", "proposal"]);
    repository.git(&["checkout", "--quiet", "proposal", "--", "policy/cluster.yaml"]);
}

fn attempts() -> Vec<Attempt> {
    vec![
        (
            "an unsigned merge of a change that its owner signed before a later one of the same document",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "proposal"]);
                change_cluster(repository);
                repository.commit(Some("centre"), "x");
                repository.git(&["checkout", "--quiet", "main"]);
                repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 7");
                repository.commit(Some("centre"), "y");
                repository.take_into_force();
                take_proposal(repository);
                repository.commit(None, "merge");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is not signed",
        ),
        (
            "the same over a commit of somebody else that goes back to what the owner changed",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "proposal"]);
                change_cluster(repository);
                repository.commit(Some("centre"), "x");
                repository.git(&["checkout", "--quiet", "main"]);
                repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 7");
                repository.commit(Some("centre"), "y");
                repository.take_into_force();
                repository.git(&["checkout", "--quiet", "-b", "back"]);
                repository.edit("cluster.yaml", "localReserveGpus: 7", "localReserveGpus: 2");
                repository.commit(Some("poly"), "back");
                repository.merge("proposal", None);
                repository.git(&["checkout", "--quiet", "main"]);
                repository.merge("back", None);
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is not signed",
        ),
    ]
}

#[test]
fn no_merge_brings_back_an_older_change() {
    each_is_refused(&attempts());
}
