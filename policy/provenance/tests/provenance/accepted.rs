//! Changes that have all signatures they need.

use comity_provenance::{
    Accepted, InForce, ObjectId, ObjectKind, ObjectStore, PolicyFolder, StoreError, Verdict, judge,
};

use super::attempts::data::{SCANS, share_data};
use super::attempts::departures::{give_cluster_to_keyless, leave_without_centre};
use super::attempts::members::share;
use super::attempts::reservations::{reserve, reserve_at_both};
use super::repository::{NOW_MS, Repository, document};

fn accepted(repository: &Repository) -> Accepted {
    match repository.judge() {
        Verdict::Accepted(accepted) => *accepted,
        Verdict::Refused(refused) => panic!("{refused}\nremedy: {}", refused.remedy()),
        Verdict::Unchanged => panic!("unchanged"),
    }
}

#[test]
fn owners_change_what_they_own() {
    let mut repository = Repository::new();
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    repository.commit(Some("centre"), "keep two more");
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 6");
    repository.commit(Some("poly"), "borrow less");
    repository.edit("rule.yaml", "m24", "m12");
    let head = repository.commit(Some("otto"), "shorter");
    let found = accepted(&repository);
    assert_eq!((found.commit, found.commits), (head, 3));
    let signers: Vec<String> = found.signers.iter().map(ToString::to_string).collect();
    assert_eq!(signers, ["maintainer otto", "institution `centre`", "institution `poly`"]);
    assert_eq!(found.bundle.clusters["centre-main"].spec.local_reserve_gpus_milli, 4_000);
    repository.take_into_force();
    assert!(matches!(repository.judge(), Verdict::Unchanged));
}

#[test]
fn a_member_of_a_cohort_alone_takes_back_what_is_its_own() {
    let mut repository = Repository::new();
    share(&mut repository);
    repository.edit("quota.yaml", "borrowingLimit: 2", "borrowingLimit: 1, lendingLimit: 3");
    repository.commit(Some("poly"), "borrow and lend less");
    repository.edit("centre-quota.yaml", "maxConcurrentGpus: 4", "maxConcurrentGpus: 2");
    repository.commit(Some("centre"), "less to share");
    accepted(&repository);
    repository.take_into_force();
    repository.edit("quota.yaml", ", cohort: lab, borrowingLimit: 1, lendingLimit: 3", "");
    repository.commit(Some("poly"), "leave");
    accepted(&repository);
    repository.take_into_force();
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 8, cohort: alone");
    repository.commit(Some("poly"), "a cohort of its own");
    accepted(&repository);
}

#[test]
fn a_donor_alone_keeps_no_more_for_others() {
    let mut repository = Repository::new();
    reserve_at_both(&mut repository);
    repository.edit("reservation.yaml", "[centre-main, poly-farm]", "[centre-main]");
    repository.commit(Some("poly"), "without ours");
    accepted(&repository);
    repository.take_into_force();
    repository.edit("reservation.yaml", "gpus: 8", "gpus: 4");
    repository.commit(Some("centre"), "half of it");
    accepted(&repository);
    repository.take_into_force();
    repository.remove("reservation.yaml");
    repository.commit(Some("centre"), "no course");
    accepted(&repository);
}

#[test]
fn a_maintainer_ends_the_reservation_of_an_institution_that_leaves() {
    let mut repository = Repository::new();
    reserve(&mut repository);
    for file in ["poly.yaml", "tenant.yaml", "quota.yaml", "agreement.yaml", "reservation.yaml"] {
        repository.remove(file);
    }
    repository.edit("cluster.yaml", ", lends: [{classes: [large], to: {institutions: [poly]}}]", "");
    repository.commit(Some("ingrid"), "poly has left");
    accepted(&repository);
}

#[test]
fn what_changes_no_document_needs_no_signature() {
    let repository = Repository::new();
    repository.edit("rule.yaml", "apiVersion", "# a comment\napiVersion");
    repository.git(&["mv", "policy/tenant.yaml", "policy/team.yaml"]);
    repository.commit(None, "tidy");
    repository.edit("rule.yaml", "m24", "m48");
    repository.commit(None, "a mistake");
    repository.edit("rule.yaml", "m48", "m24");
    repository.commit(None, "and its end");
    accepted(&repository);
}

#[test]
fn several_sign_by_approving() {
    let repository = Repository::new();
    repository.edit("agreement.yaml", "maxGpus: 8", "maxGpus: 16");
    let change = repository.commit(Some("poly"), "more");
    repository.approve("centre", change);
    repository.edit(
        "federation.yaml",
        "signatures: {required: true}",
        "signatures: {required: true, maintainersNeeded: 1}",
    );
    let change = repository.commit(None, "one is enough");
    repository.approve("ingrid", change);
    repository.approve("otto", change);
    accepted(&repository);
}

#[test]
fn an_unsigned_merge_brings_in_what_owners_signed_on_a_branch() {
    let repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "proposal"]);
    repository.edit("agreement.yaml", "maxGpus: 8", "maxGpus: 16");
    let change = repository.commit(Some("poly"), "more");
    repository.approve("centre", change);
    repository.git(&["checkout", "--quiet", "main"]);
    repository.edit("rule.yaml", "m24", "m12");
    repository.commit(Some("otto"), "meanwhile");
    repository.merge("proposal", None);
    accepted(&repository);
}

#[test]
fn a_merge_signed_by_the_owner_takes_over_what_others_wrote() {
    let repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "proposal"]);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    repository.commit(None, "a proposal by somebody");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.merge("proposal", Some("centre"));
    accepted(&repository);
}

#[test]
fn a_merge_with_swapped_parents_is_judged_from_the_commit_in_force() {
    let mut repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "proposal"]);
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 6");
    repository.commit(Some("poly"), "less");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.edit("rule.yaml", "m24", "m12");
    repository.commit(Some("otto"), "meanwhile");
    repository.take_into_force();
    repository.git(&["checkout", "--quiet", "proposal"]);
    repository.merge("main", None);
    accepted(&repository);
}

#[test]
fn a_key_changes_hands_by_its_own_signature() {
    let repository = Repository::new();
    let (old, new) = (repository.key("centre"), repository.key("new"));
    repository.edit("centre.yaml", &old, &new);
    repository.commit(Some("centre"), "a new key");
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    repository.commit(Some("new"), "by the new key");
    accepted(&repository);
}

#[test]
fn a_broken_commit_is_judged_with_the_one_that_mends_it() {
    let repository = Repository::new();
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: two");
    repository.commit(Some("centre"), "oops");
    repository.edit("cluster.yaml", "localReserveGpus: two", "localReserveGpus: 4");
    repository.commit(Some("centre"), "mended");
    accepted(&repository);
}

#[test]
fn institutions_come_leave_and_end_what_they_have_with_others() {
    let mut repository = Repository::new();
    repository.write("guest.yaml", &document("Institution", "guest", "displayName: G, contact: g@x"));
    repository.commit(Some("otto"), "admit");
    repository.remove("agreement.yaml");
    repository.commit(Some("poly"), "end the agreement");
    repository.edit("keyless.yaml", "displayName: X", "displayName: Y");
    repository.commit(Some("ingrid"), "maintainers sign for who has no keys");
    accepted(&repository);
    repository.take_into_force();
    // Poly is named by a term of another institution's cluster, which goes with it.
    for file in ["poly.yaml", "tenant.yaml", "quota.yaml"] {
        repository.remove(file);
    }
    repository.edit("cluster.yaml", "lends: [{classes: [large], to: {institutions: [poly]}}]", "lends: []");
    repository.commit(Some("ingrid"), "remove poly");
    let found = accepted(&repository);
    let names = ["Cluster/poly-farm", "Institution/poly", "Tenant/ml"];
    assert_eq!(found.taken_names.iter().collect::<Vec<_>>(), names);
}

#[test]
fn two_maintainers_give_the_cluster_of_an_institution_that_left_to_another_one() {
    let repository = Repository::new();
    leave_without_centre(&repository);
    repository.commit(Some("ingrid"), "remove");
    give_cluster_to_keyless(&repository);
    let given = repository.commit(Some("ingrid"), "give");
    repository.approve("otto", given);
    let found = accepted(&repository);
    assert_eq!(found.taken_names.iter().collect::<Vec<_>>(), ["Institution/centre"]);
}

#[test]
fn an_owner_brings_a_proposal_up_to_date_on_its_branch() {
    let mut repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "proposal"]);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 0");
    repository.commit(Some("centre"), "propose");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 7");
    repository.commit(Some("centre"), "meanwhile");
    repository.take_into_force();
    repository.git(&["checkout", "--quiet", "proposal"]);
    repository.try_git(&["merge", "--quiet", "--no-ff", "--no-commit", "main"]);
    repository.git(&["checkout", "--quiet", "--ours", "--", "policy/cluster.yaml"]);
    repository.commit(Some("centre"), "bring up to date");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.merge("proposal", None);
    accepted(&repository);
}

#[test]
fn without_signatures_in_force_only_the_line_of_commits_counts() {
    let mut repository = Repository::new();
    repository.edit("federation.yaml", "signatures: {required: true}, ", "");
    repository.commit(None, "no signatures");
    repository.take_into_force();
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    repository.commit(None, "unsigned");
    accepted(&repository);
    repository.edit("federation.yaml", "maintainers:", "signatures: {required: true}, maintainers:");
    repository.commit(None, "from here on signed");
    accepted(&repository);
    repository.edit("cluster.yaml", "localReserveGpus: 4", "localReserveGpus: 5");
    repository.commit(Some("centre"), "signed");
    accepted(&repository);
    repository.edit("cluster.yaml", "localReserveGpus: 5", "localReserveGpus: 6");
    repository.commit(None, "unsigned");
    assert!(matches!(repository.judge(), Verdict::Refused(_)));
}

#[test]
fn the_first_commit_is_compared_with_the_bundle_in_force() {
    let mut repository = Repository::new();
    repository.commit = None;
    repository.commit(None, "the same documents");
    accepted(&repository);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    repository.commit(Some("centre"), "and a change by its owner");
    let Verdict::Refused(refused) = repository.judge() else { panic!("a signature of any time counts") };
    let hash = repository.in_force.hash.clone();
    assert!(refused.to_string().contains(&format!("`Replaces: {hash}`")), "{refused}");
    assert!(refused.remedy().contains(&format!("--trailer 'Replaces: {hash}'")), "{}", refused.remedy());
    repository.commit(Some("centre"), &format!("Replace\n\nReplaces: {hash}"));
    accepted(&repository);
    repository.commit(None, &format!("unsigned\n\nReplaces: {hash}"));
    assert!(matches!(repository.judge(), Verdict::Refused(_)));
}

#[test]
fn a_signed_branch_counts_in_the_history_in_which_it_began() {
    let mut repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "proposal"]);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 0");
    repository.commit(Some("centre"), "signed once");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.commit(None, "the same documents");
    repository.take_into_force();
    repository.merge("proposal", None);
    accepted(&repository);

    // As after `source set --new-history`: the commit before the merge is the first one of another history.
    repository.git(&["reset", "--quiet", "--hard", "HEAD^"]);
    repository.commit(None, "the same documents again");
    repository.commit = None;
    repository.take_into_force();
    let merge = repository.merge("proposal", None);
    let Verdict::Refused(refused) = repository.judge() else { panic!("a signature of another history counts") };
    let missing = "changes Cluster `centre-main` without the signature of institution `centre`";
    assert!(refused.to_string().contains(missing), "{refused}");
    repository.approve("centre", merge);
    accepted(&repository);
}

#[test]
fn the_time_of_the_broker_decides_whether_a_key_counts() {
    let mut repository = Repository::new();
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 6");
    repository.commit(Some("old"), "by the key that ends with November");
    assert!(matches!(repository.judge(), Verdict::Refused(_)));
    repository.now_ms = NOW_MS - 2 * 24 * 3_600_000;
    accepted(&repository);
}

#[test]
fn nobody_is_locked_out_by_keys_whose_time_is_over() {
    for (file, from, to, signers) in [
        ("federation.yaml", "commitKeys: [{", "commitKeys: [{until: 2026-11-30, ", ["ingrid", "otto"]),
        ("centre.yaml", "commitKeys: [{", "commitKeys: [{until: 2026-11-30, ", ["centre", "otto"]),
    ] {
        let mut repository = Repository::new();
        repository.edit(file, from, to);
        let changed = repository.commit(Some(signers[0]), "keys of the past");
        repository.approve(signers[1], changed);
        let Verdict::Refused(refused) = repository.judge() else { panic!("{file} is accepted") };
        assert_eq!(refused.reason.code(), "locked-out", "{refused}");
        assert!(refused.to_string().contains("whose `until` is not over"), "{refused}");
        repository.now_ms = NOW_MS - 2 * 24 * 3_600_000;
        accepted(&repository);
    }
}

/// A repository that gives one object in place of another.
struct Liar<'r> {
    repository: &'r Repository,
    asked: ObjectId,
    given: ObjectId,
}

impl ObjectStore for Liar<'_> {
    fn object(&self, id: ObjectId, kind: ObjectKind, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.repository.object(if id == self.asked { self.given } else { id }, kind, limit)
    }
}

#[test]
fn a_store_that_lies_is_found_out() {
    let repository = Repository::new();
    let id = |of: &str| repository.git(&["rev-parse", of]).parse::<ObjectId>().unwrap();
    let file = id("HEAD:policy/rule.yaml");
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 4");
    let head = repository.commit(Some("centre"), "signed");
    let folder = "policy".parse::<PolicyFolder>().unwrap();
    let in_force = InForce {
        bundle: &repository.in_force,
        commit: repository.commit,
        began: repository.began,
        taken_names: &repository.taken_names,
    };
    for (asked, given) in
        [(id("HEAD:policy/cluster.yaml"), file), (head, id("HEAD^")), (id("HEAD^{tree}"), id("HEAD^^{tree}"))]
    {
        let liar = Liar { repository: &repository, asked, given };
        let verdict = judge(&liar, &folder, &in_force, head, NOW_MS);
        assert!(matches!(verdict, Err(StoreError::Corrupt { id, .. }) if id == asked), "{verdict:?}");
    }
}

#[test]
fn owners_restrict_data_alone_and_maintainers_remove_the_names_of_the_gone() {
    let mut repository = Repository::new();
    share_data(&mut repository);
    repository.edit("scans.yaml", "purposes: [research]", "purposes: [teaching]");
    repository.commit(Some("poly"), "the owner decides");
    repository.edit("agreement.yaml", "purposes: [research]", "purposes: []");
    repository.commit(Some("centre"), "one party narrows an agreement");
    accepted(&repository);
    repository.take_into_force();
    repository.remove("centre.yaml");
    repository.remove("cluster.yaml");
    repository.remove("agreement.yaml");
    let rest = SCANS.replace(", centre]", "]").replace("[centre-main]", "[]").replace("research", "teaching");
    repository.write("scans.yaml", &document("Dataset", "scans", &rest));
    repository.commit(Some("ingrid"), "remove centre");
    accepted(&repository);
}
