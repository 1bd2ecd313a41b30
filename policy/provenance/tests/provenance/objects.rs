//! What is shown to somebody else suffices to judge, and is no more than that.

use std::collections::BTreeMap;

use comity_provenance::{
    InForce, ObjectId, ObjectKind, ObjectStore, PolicyFolder, StoreError, Verdict, judge, judge_within, policy_at,
    visit_objects,
};

use super::repository::{NOW_MS, Repository};

/// The objects that a visit showed.
#[derive(Default)]
struct Shown(BTreeMap<ObjectId, (ObjectKind, Vec<u8>)>);

impl ObjectStore for Shown {
    fn object(&self, id: ObjectId, kind: ObjectKind, _limit: usize) -> Result<Vec<u8>, StoreError> {
        let found = self.0.get(&id).filter(|(held, _)| *held == kind);
        found.map(|(_, content)| content.clone()).ok_or(StoreError::Missing { kind, id })
    }
}

impl Shown {
    fn between(repository: &Repository, from: Option<ObjectId>, to: ObjectId) -> Self {
        let mut shown = Self::default();
        let mut visit = |kind: ObjectKind, content: &[u8]| {
            let id = ObjectId::of(kind, content).unwrap();
            assert!(shown.0.insert(id, (kind, content.to_vec())).is_none(), "shown twice");
            Ok(())
        };
        visit_objects(repository, &folder(), from, to, &mut visit).unwrap();
        shown
    }

    fn commits(&self) -> usize {
        self.0.values().filter(|(kind, _)| *kind == ObjectKind::Commit).count()
    }
}

fn folder() -> PolicyFolder {
    "policy".parse().unwrap()
}

/// The verdict by what is shown, which is that by the whole repository.
fn judged(repository: &Repository) -> (Shown, Verdict) {
    let head = repository.head();
    let shown = Shown::between(repository, repository.commit, head);
    let at_base = policy_at(&shown, &folder(), repository.commit.unwrap()).unwrap().unwrap();
    assert_eq!(at_base.hash, repository.in_force.hash, "the policy at the earlier commit is shown");
    let in_force = InForce {
        bundle: &at_base,
        commit: repository.commit,
        began: repository.began,
        taken_names: &repository.taken_names,
    };
    let verdict = judge(&shown, &folder(), &in_force, head, NOW_MS).unwrap();
    assert_eq!(format!("{verdict:?}"), format!("{:?}", repository.judge()));
    (shown, verdict)
}

#[test]
fn on_one_line_nothing_older_is_read() {
    let mut repository = Repository::new();
    for (from, to) in [(2, 3), (3, 4), (4, 5)] {
        repository.edit("cluster.yaml", &format!("localReserveGpus: {from}"), &format!("localReserveGpus: {to}"));
        repository.commit(Some("centre"), "one more");
    }
    repository.take_into_force();
    repository.edit("cluster.yaml", "localReserveGpus: 5", "localReserveGpus: 6");
    repository.commit(Some("centre"), "one more");
    let (shown, verdict) = judged(&repository);
    assert!(matches!(verdict, Verdict::Accepted(_)));
    assert_eq!(shown.commits(), 2, "the one in force and the head");
}

#[test]
fn a_branch_from_before_is_judged_by_what_is_shown() {
    let mut repository = Repository::new();
    repository.git(&["branch", "old"]);
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 3");
    repository.commit(Some("centre"), "in force");
    repository.take_into_force();
    repository.git(&["checkout", "--quiet", "old"]);
    repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 6");
    repository.commit(Some("poly"), "on a branch that began before");
    repository.git(&["checkout", "--quiet", "main"]);
    repository.merge("old", None);
    let (_, verdict) = judged(&repository);
    assert!(matches!(verdict, Verdict::Accepted(_)), "{verdict:?}");
}

#[test]
fn an_older_and_an_unsigned_head_are_refused_by_what_is_shown() {
    let mut repository = Repository::new();
    let first = repository.head();
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 3");
    repository.commit(Some("centre"), "in force");
    repository.take_into_force();
    repository.edit("cluster.yaml", "localReserveGpus: 3", "localReserveGpus: 0");
    repository.commit(Some("eve"), "forged");
    let (_, verdict) = judged(&repository);
    assert!(matches!(&verdict, Verdict::Refused(refused) if refused.reason.code() == "unsigned"), "{verdict:?}");
    repository.git(&["reset", "--quiet", "--hard", &first.to_string()]);
    let (_, verdict) = judged(&repository);
    assert!(matches!(&verdict, Verdict::Refused(refused) if refused.reason.code() == "rollback"), "{verdict:?}");
    repository.commit(Some("ingrid"), "elsewhere");
    let (_, verdict) = judged(&repository);
    assert!(matches!(&verdict, Verdict::Refused(refused) if refused.reason.code() == "diverged"), "{verdict:?}");
}

#[test]
fn one_with_less_memory_refuses_more_policy_than_it_can_hold() {
    let repository = Repository::new();
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 3");
    let head = repository.commit(Some("centre"), "signed");
    let in_force = InForce {
        bundle: &repository.in_force,
        commit: repository.commit,
        began: repository.began,
        taken_names: &repository.taken_names,
    };
    let verdict = judge_within(&repository, &folder(), &in_force, head, NOW_MS, 100).unwrap();
    assert!(matches!(&verdict, Verdict::Refused(refused) if refused.reason.code() == "too-long"), "{verdict:?}");
}
