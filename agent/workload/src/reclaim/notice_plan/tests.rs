//! One lease on the virtual node lease-7, as its reclaim comes and goes.

use super::*;

const PLANNED_AT: u64 = 1_000_000;
const AT: &str = "2026-03-01T12:00:00Z";

fn reclaim() -> ReclaimNotice {
    ReclaimNotice {
        at: AT.to_owned(),
        reason: "local-need".to_owned(),
        message: "reclaimed: the donor needs it for local work".to_owned(),
        moved_to: None,
        since_ms: PLANNED_AT - 20_000,
    }
}

fn snapshot(reclaim: Option<ReclaimNotice>, pods: Vec<BoundPod>) -> ReclaimSnapshot {
    let lease = LeaseView { node: "lease-7".to_owned(), reclaim, noticed_ms: PLANNED_AT - 10_000 };
    ReclaimSnapshot { now_ms: PLANNED_AT, leases: BTreeMap::from([(LeaseId(9), lease)]), pods }
}

fn pod(name: &str) -> BoundPod {
    BoundPod {
        pod: PodRef { namespace: "team-a".to_owned(), name: name.to_owned(), uid: name.to_owned() },
        node: "lease-7".to_owned(),
        runs: true,
        is_finished: false,
        notified_deadline: None,
        notified_reason: None,
        is_saved: false,
    }
}

fn notified(name: &str, is_saved: bool) -> BoundPod {
    BoundPod {
        notified_deadline: Some(AT.to_owned()),
        notified_reason: Some("local-need".to_owned()),
        is_saved,
        ..pod(name)
    }
}

fn saved(snapshot: &ReclaimSnapshot) -> Vec<LeaseId> {
    plan(snapshot).saved.into_iter().collect()
}

#[test]
fn each_pod_of_the_node_is_notified_once() {
    let elsewhere = BoundPod { node: "worker-1".to_owned(), ..pod("elsewhere") };
    let finished = BoundPod { is_finished: true, runs: false, ..pod("finished") };
    let plan = plan(&snapshot(Some(reclaim()), vec![pod("a"), notified("b", false), elsewhere, finished]));
    let [notice] = plan.notices.as_slice() else { panic!("{plan:?}") };
    assert_eq!(notice.pod.name, "a");
    assert_eq!(notice.marks, Some((AT.to_owned(), "local-need".to_owned())));
    assert!(notice.note.is_warning && notice.note.reason == "ComityReclaim");
    for part in ["lease-9 ends at", AT, "for local work", "another place is sought", "comity.dev/checkpointed=true"] {
        assert!(notice.note.text.contains(part), "{part}: {}", notice.note.text);
    }
    assert!(plan.saved.is_empty());
}

#[test]
fn a_later_deadline_writes_a_new_notice() {
    let later = ReclaimNotice { at: "2026-03-01T13:00:00Z".to_owned(), moved_to: Some(LeaseId(11)), ..reclaim() };
    let plan = plan(&snapshot(Some(later), vec![notified("a", true)]));
    assert_eq!(plan.notices.len(), 1);
    assert!(plan.notices[0].note.text.contains("it continues as lease-11"));
    assert!(plan.saved.is_empty(), "what was saved for the earlier notice has run on since");
}

#[test]
fn work_is_saved_when_every_running_pod_reports_so() {
    let waiting = BoundPod { runs: false, ..notified("not-started", false) };
    let finished = BoundPod { is_finished: true, runs: false, ..pod("finished") };
    let all = vec![notified("a", true), waiting, finished];
    assert_eq!(saved(&snapshot(Some(reclaim()), all.clone())), [LeaseId(9)]);
    let one_more = [all, vec![notified("b", false)]].concat();
    assert!(saved(&snapshot(Some(reclaim()), one_more)).is_empty());
}

#[test]
fn an_answer_from_before_the_notice_does_not_count() {
    let early = BoundPod { is_saved: true, ..pod("a") };
    let plan = plan(&snapshot(Some(reclaim()), vec![early]));
    assert_eq!((plan.notices.len(), plan.saved.len()), (1, 0));
}

#[test]
fn an_empty_node_is_saved_once_it_has_settled() {
    let mut snapshot = snapshot(Some(reclaim()), Vec::new());
    snapshot.now_ms = PLANNED_AT - 8_000;
    let early = plan(&snapshot);
    assert!(early.saved.is_empty());
    assert_eq!(early.wake_at_ms, Some(PLANNED_AT - 5_000));
    snapshot.now_ms = PLANNED_AT - 5_000;
    assert_eq!(saved(&snapshot), [LeaseId(9)]);
}

#[test]
fn a_withdrawn_reclaim_is_announced_and_nothing_is_reported() {
    let plan = plan(&snapshot(None, vec![notified("a", true), pod("b")]));
    let [notice] = plan.notices.as_slice() else { panic!("{plan:?}") };
    assert_eq!((notice.pod.name.as_str(), &notice.marks), ("a", &None));
    assert_eq!(notice.note.reason, "ComityReclaimWithdrawn");
    assert!(plan.saved.is_empty());
}
