#![expect(clippy::unwrap_used, reason = "tests")]

mod gpu_parts;
mod renewal;

use comity_proto::v1;

use super::*;
use crate::burst::GATE;
use crate::burst::fixtures::{NOW, gated, lease, pending, pod, request, rules, snapshot};
use crate::burst::snapshot::{EndedRequest, InFlight, WrittenNote};

fn submissions(actions: &[BurstAction]) -> Vec<&Submission> {
    actions
        .iter()
        .filter_map(|action| if let BurstAction::Submit(one) = action { Some(&**one) } else { None })
        .collect()
}

fn names(pods: &[PodRef]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

fn released(actions: &[BurstAction]) -> Vec<&str> {
    let released = actions.iter().filter(|action| matches!(action, BurstAction::Ungate { .. }));
    released.filter_map(crate::burst::pod_client::pod_of).map(|pod| pod.name.as_str()).collect()
}

fn notes_on<'a>(actions: &'a [BurstAction], name: &str) -> Vec<&'a Note> {
    actions
        .iter()
        .filter_map(|action| match action {
            BurstAction::WriteEvent { pod, note } if pod.name == name => Some(note),
            _ => None,
        })
        .collect()
}

/// The group of the fixtures' pods, as their requests name it.
fn group() -> String {
    let actions = plan(&snapshot(vec![pending("p")]));
    let text = submissions(&actions)[0].request.note.to_string();
    text.rsplit_once('#').unwrap().1.to_owned()
}

fn with_request(snapshot: &mut BurstSnapshot, id: &str, facts: crate::burst::RequestFacts) {
    snapshot.requests.get_or_insert_default().insert(id.to_owned(), facts);
}

fn with_lease(snapshot: &mut BurstSnapshot, id: &str, gpus: u32, stage: LeaseStage) {
    let mut placed = request(gpus, &group());
    (placed.is_queued, placed.lease) = (false, Some(id.to_owned()));
    let req = id.replace("lease", "req");
    snapshot.leases.get_or_insert_default().insert(id.to_owned(), lease(&req, gpus, stage));
    with_request(snapshot, &req, placed);
}

#[test]
fn pods_of_one_owner_become_one_request() {
    let actions = plan(&snapshot(vec![pending("a"), gated("b"), pod("not-tried-yet")]));
    let asked = submissions(&actions);
    assert_eq!((asked.len(), names(&asked[0].pods)), (1, vec!["a", "b"]));
    let spec = asked[0].request.to_message();
    let gpus = spec.gpus.as_ref().unwrap();
    assert_eq!((gpus.count, gpus.cpu_milli_per_gpu, gpus.class.as_str()), (2, 1_000, "frontier"));
    assert_eq!((spec.tenant.as_str(), spec.origin.as_str()), ("vision", "polytechnic"));
    assert_eq!((spec.target_namespace.as_str(), spec.delivery()), ("team-a", v1::Delivery::VirtualNode));
    assert!(spec.note.starts_with("burst of replicaset/train 1x nvidia.com/gpu #"), "{}", spec.note);
}

#[test]
fn options_are_requested_and_never_met_by_requests_without_them() {
    let mut snapshot = snapshot(vec![pending("a"), pending("b")]);
    snapshot.pods[1].facts.options.preemptible_grace_ms = Some(600_000);
    let actions = plan(&snapshot);
    let asked = submissions(&actions);
    assert_eq!(asked.len(), 2);
    let preemptible: Vec<_> =
        asked.iter().map(|one| (names(&one.pods), one.request.to_message().preemptible)).collect();
    let requested = Some(v1::Preemptible { grace_ms: 600_000, ..v1::Preemptible::default() });
    assert!(
        preemptible.contains(&(vec!["a"], None)) && preemptible.contains(&(vec!["b"], requested)),
        "{preemptible:?}"
    );
    // A preemptible lease with room for all serves only the preemptible pod.
    with_lease(&mut snapshot, "lease-1", 2, LeaseStage::Active);
    let facts = snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap();
    facts.options.preemptible_grace_ms = Some(600_000);
    let actions = plan(&snapshot);
    let sent = actions.iter().filter_map(|action| match action {
        BurstAction::Tolerate { pod, lease, .. } => Some((pod.name.as_str(), lease.as_str())),
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [("b", "lease-1")]);
    assert_eq!(names(&submissions(&actions)[0].pods), ["a"]);
}

#[test]
fn pods_that_still_come_are_waited_for_and_a_pod_alone_is_not_delayed() {
    let mut fresh = snapshot(vec![pending("a")]);
    fresh.pods[0].seen_ms = NOW - 100;
    assert_eq!(plan(&fresh), [BurstAction::WakeAt { at_ms: NOW + 150 }]);
    fresh.now_ms = NOW + 150;
    assert_eq!(submissions(&plan(&fresh)).len(), 1);
    // A growing number of pods does not delay the first one forever.
    let mut growing = snapshot((0..50).map(|i| pending(&format!("p{i:02}"))).collect());
    for (index, pod) in growing.pods.iter_mut().enumerate() {
        pod.seen_ms = NOW - 1_000 + 20 * u64::try_from(index).unwrap();
    }
    growing.namespaces.insert("team-a".to_owned(), Ok(crate::burst::Rules { max_gpus: 64, ..rules() }));
    assert_eq!(submissions(&plan(&growing))[0].pods.len(), 50);
    // A pod without an owner is not delayed, nor are all pods of an owner whose size is known.
    let mut alone = snapshot(vec![pending("a")]);
    alone.pods[0].seen_ms = NOW;
    alone.expected.insert("owner".to_owned(), 1);
    assert_eq!(submissions(&plan(&alone)).len(), 1);
    alone.expected.insert("owner".to_owned(), 2);
    assert!(submissions(&plan(&alone)).is_empty());
    alone.pods[0].facts.owner.kind = "pod".to_owned();
    assert_eq!(submissions(&plan(&alone)).len(), 1);
}

#[test]
fn a_gated_pod_that_fits_here_is_just_released() {
    let mut snapshot = snapshot(vec![gated("a"), gated("b"), gated("c")]);
    snapshot.local = vec![[("nvidia.com/gpu".to_owned(), 1)].into(), [("nvidia.com/gpu".to_owned(), 1)].into()];
    let actions = plan(&snapshot);
    assert_eq!(released(&actions), ["a", "b"]);
    assert_eq!(names(&submissions(&actions)[0].pods), ["c"]);
    // A pod that the scheduler has yet to place takes a GPU first.
    snapshot.pods.push(pod("before"));
    assert_eq!(released(&plan(&snapshot)), ["a"]);
    // A gang stays as a whole, or bursts as a whole.
    snapshot.pods.iter_mut().for_each(|pod| pod.facts.owner.is_gang = true);
    assert!(released(&plan(&snapshot)).is_empty());
    assert_eq!(submissions(&plan(&snapshot))[0].pods.len(), 3);
}

#[test]
fn pods_that_wait_for_their_request_go_home_when_a_gpu_here_is_free() {
    let mut snapshot = snapshot(vec![gated("a")]);
    snapshot.pods[0].facts.request = Some("req-1".to_owned());
    with_request(&mut snapshot, "req-1", request(1, &group()));
    assert!(released(&plan(&snapshot)).is_empty());
    snapshot.local = vec![[("nvidia.com/gpu".to_owned(), 1)].into()];
    assert_eq!(released(&plan(&snapshot)), ["a"]);
}

#[test]
fn an_active_lease_gets_the_pods_of_its_request() {
    let mut snapshot = snapshot(vec![gated("held"), pending("tried"), pending("other")]);
    for pod in &mut snapshot.pods[..2] {
        pod.facts.request = Some("req-1".to_owned());
    }
    with_lease(&mut snapshot, "lease-1", 2, LeaseStage::Coming);
    let actions = plan(&snapshot);
    assert_eq!(notes_on(&actions, "held")[0].reason, "ComityConnecting");
    assert!(!actions.iter().any(|action| matches!(action, BurstAction::Pin { .. } | BurstAction::Tolerate { .. })));

    with_lease(&mut snapshot, "lease-1", 2, LeaseStage::Active);
    let actions = plan(&snapshot);
    let lease = || ("lease-1".to_owned(), "req-1".to_owned());
    let (held, tried) = (snapshot.pods[0].facts.pod.clone(), snapshot.pods[1].facts.pod.clone());
    assert!(actions.contains(&BurstAction::Pin { pod: held, lease: lease().0, request: lease().1 }));
    assert!(actions.contains(&BurstAction::Tolerate { pod: tried, lease: lease().0, request: lease().1 }));
    assert_eq!(names(&submissions(&actions)[0].pods), ["other"]);
    assert!(notes_on(&actions, "held")[0].text.contains("until 19"), "{actions:?}");
    // Once it tolerates the taint there is nothing left to do.
    snapshot.pods[1].facts.tolerates.insert("lease-1".to_owned());
    assert!(!plan(&snapshot).iter().any(|action| matches!(action, BurstAction::Tolerate { .. })));
}

#[test]
fn room_on_a_lease_is_used_before_more_is_requested() {
    let mut snapshot = snapshot(vec![pending("a"), pending("b"), pending("c")]);
    with_lease(&mut snapshot, "lease-1", 2, LeaseStage::Active);
    snapshot.pods[0].facts.node = Some("lease-1".to_owned());
    snapshot.pods[0].facts.is_unschedulable = false;
    let actions = plan(&snapshot);
    let tolerating: Vec<_> = actions.iter().filter(|action| matches!(action, BurstAction::Tolerate { .. })).collect();
    assert_eq!(tolerating.len(), 1);
    assert_eq!(names(&submissions(&actions)[0].pods), ["c"]);
    // GPUs of another kind or class, or with too little memory, are no room.
    for change in 0..3 {
        let mut other = snapshot.clone();
        let lease = other.leases.as_mut().unwrap().get_mut("lease-1").unwrap();
        let request = other.requests.as_mut().unwrap().get_mut("req-1").unwrap();
        match change {
            0 => lease.resource = "amd.com/gpu".to_owned(),
            1 => request.class = "teaching".to_owned(),
            _ => request.memory_mib_per_gpu = 1,
        }
        assert_eq!(names(&submissions(&plan(&other))[0].pods), ["b", "c"]);
    }
}

#[test]
fn a_restart_finds_its_own_request_again() {
    let before = snapshot(vec![pending("a"), pending("b")]);
    let key = submissions(&plan(&before))[0].key.clone();
    assert_eq!(submissions(&plan(&before))[0].key, key, "the same pods give the same key");
    // The broker has the request, but its annotations were never written: the pods join it.
    let mut after = before.clone();
    with_request(&mut after, "req-7", request(2, &group()));
    let actions = plan(&after);
    assert!(submissions(&actions).is_empty());
    let joined =
        actions.iter().filter(|action| matches!(action, BurstAction::Assign { request, .. } if request == "req-7"));
    assert_eq!(joined.count(), 2);
    // While a submission is in flight, it is not repeated.
    let mut flying = before.clone();
    let pods = ["a".to_owned(), "b".to_owned()].into();
    flying.in_flight.push(InFlight { namespace: "team-a".to_owned(), gpus: 2, pods });
    assert!(submissions(&plan(&flying)).is_empty());
}

#[test]
fn limits_of_the_namespace_hold() {
    let mut snapshot = snapshot((0..10).map(|i| pending(&format!("p{i}"))).collect());
    let actions = plan(&snapshot);
    assert_eq!(submissions(&actions)[0].pods.len(), 8);
    assert_eq!(notes_on(&actions, "p9")[0].reason, "ComityLimit");
    snapshot.pods.iter_mut().for_each(|pod| pod.facts.owner.is_gang = true);
    let actions = plan(&snapshot);
    assert!(submissions(&actions).is_empty() && notes_on(&actions, "p0")[0].is_warning);
    snapshot.pods.truncate(5);
    with_request(&mut snapshot, "req-9", request(4, "another"));
    let actions = plan(&snapshot);
    assert!(submissions(&actions).is_empty(), "a gang of five where four are left");
    assert!(notes_on(&actions, "p0")[0].text.contains("8 GPUs in 4 requests"));
}

#[test]
fn pods_of_several_gpus_get_one_request_each() {
    let mut snapshot = snapshot(vec![pending("a"), pending("b"), pending("c")]);
    for pod in &mut snapshot.pods {
        pod.facts.shape.as_mut().unwrap().gpus = 4;
    }
    let actions = plan(&snapshot);
    let asked = submissions(&actions);
    assert_eq!(asked.len(), 2, "8 GPUs are allowed");
    assert!(asked.iter().all(|one| one.request.same_node && one.pods.len() == 1));
    assert_ne!(asked[0].key, asked[1].key);
}

#[test]
fn pods_that_cannot_burst_get_an_event_and_stay() {
    let mut snapshot = snapshot(vec![gated("a"), pending("b"), gated("c"), gated("d")]);
    snapshot.pods[0].facts.obstacle = Some("volume data is a path of its host".to_owned());
    snapshot.pods[1].facts.obstacle = Some("volume data is a path of its host".to_owned());
    snapshot.pods[2].facts.opted_out = true;
    snapshot.pods[3].facts.pod.namespace = "not-opted-in".to_owned();
    let actions = plan(&snapshot);
    assert_eq!(released(&actions), ["a", "c", "d"]);
    assert!(notes_on(&actions, "b")[0].text.contains("volume data"));
    assert!(notes_on(&actions, "c").is_empty() && submissions(&actions).is_empty());
    snapshot.namespaces.insert("team-a".to_owned(), Err("label it".to_owned()));
    snapshot.pods = vec![gated("e")];
    let actions = plan(&snapshot);
    assert!(released(&actions) == ["e"] && notes_on(&actions, "e")[0].text.contains("label it"));
    snapshot.namespaces.insert("team-a".to_owned(), Ok(crate::burst::Rules { class: String::new(), ..rules() }));
    assert!(notes_on(&plan(&snapshot), "e")[0].text.contains("comity.dev/class"));
}

#[test]
fn the_gate_holds_nobody_for_ever() {
    let mut snapshot = snapshot(vec![gated("a")]);
    (snapshot.requests, snapshot.leases) = (None, None);
    let actions = plan(&snapshot);
    assert!(released(&actions).is_empty() && notes_on(&actions, "a")[0].text.contains("broker"));
    assert!(actions.contains(&BurstAction::WakeAt { at_ms: NOW + 290_000 }));
    snapshot.now_ms = NOW + 290_000;
    assert_eq!(released(&plan(&snapshot)), ["a"]);
    // Also if another gate holds it too.
    snapshot.pods[0].facts.gates.push("other".to_owned());
    assert_eq!(released(&plan(&snapshot)), ["a"]);
}

#[test]
fn events_are_not_repeated() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.request = Some("req-1".to_owned());
    with_request(&mut snapshot, "req-1", request(1, &group()));
    let note = notes_on(&plan(&snapshot), "a")[0].clone();
    assert!(note.text.contains("req-1") && note.text.contains("no cluster has been chosen"));
    let written = WrittenNote { note, at_ms: NOW - 60_000 };
    snapshot.written_notes.insert("a".to_owned(), vec![written.clone()]);
    assert!(notes_on(&plan(&snapshot), "a").is_empty());
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().message = "all GPUs are taken".to_owned();
    let other = notes_on(&plan(&snapshot), "a")[0].clone();
    assert!(other.text.contains("all GPUs are taken"));
    // Neither event is repeated soon, whichever came last.
    snapshot.written_notes.insert("a".to_owned(), vec![written, WrittenNote { note: other, at_ms: NOW - 1_000 }]);
    assert!(notes_on(&plan(&snapshot), "a").is_empty());
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().message = String::new();
    assert!(notes_on(&plan(&snapshot), "a").is_empty());
    snapshot.now_ms = NOW + 600_000;
    assert_eq!(notes_on(&plan(&snapshot), "a").len(), 1);
}

#[test]
fn without_virtual_nodes_nothing_is_held_or_requested() {
    let mut snapshot = snapshot(vec![gated("a"), pending("b"), gated("c")]);
    snapshot.cannot_borrow = Some("Liqo is not installed in namespace liqo; install it".to_owned());
    snapshot.pods[2].facts.request = Some("req-1".to_owned());
    with_request(&mut snapshot, "req-1", request(1, &group()));
    let actions = plan(&snapshot);
    assert_eq!(released(&actions), ["a", "c"]);
    assert!(submissions(&actions).is_empty());
    assert!(actions.contains(&BurstAction::Cancel { request: "req-1".to_owned() }));
    for name in ["a", "b", "c"] {
        let notes = notes_on(&actions, name);
        assert!(
            notes.len() == 1 && notes[0].is_warning && notes[0].text.contains("Liqo is not installed"),
            "{notes:?}"
        );
    }
}

#[test]
fn a_namespace_without_requests_keeps_its_pods() {
    let mut snapshot = snapshot(vec![gated("a")]);
    snapshot.namespaces.insert("team-a".to_owned(), Ok(crate::burst::Rules { max_requests: 0, ..rules() }));
    let actions = plan(&snapshot);
    assert!(released(&actions) == ["a"] && submissions(&actions).is_empty());
    let note = notes_on(&actions, "a")[0];
    assert!(
        note.is_warning && note.reason == "ComityLimit" && note.text.contains("comity.dev/max-requests"),
        "{note:?}"
    );
}

#[test]
fn recreated_pods_join_the_request_that_waits_again() {
    let mut snapshot = snapshot(vec![pending("again")]);
    with_request(&mut snapshot, "req-1", request(1, &group()));
    snapshot.leases.get_or_insert_default().insert("lease-1".to_owned(), lease("req-1", 1, LeaseStage::Ending));
    let actions = plan(&snapshot);
    assert!(submissions(&actions).is_empty(), "{actions:?}");
    let assigned = |action: &BurstAction| matches!(action, BurstAction::Assign { request, .. } if request == "req-1");
    assert!(actions.iter().any(assigned), "{actions:?}");
    // A request that was released is no room.
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().is_queued = false;
    assert_eq!(submissions(&plan(&snapshot)).len(), 1);
}

#[test]
fn unused_requests_and_leases_are_released() {
    let mut snapshot = snapshot(Vec::new());
    with_request(&mut snapshot, "req-1", request(1, &group()));
    with_request(&mut snapshot, "req-2", crate::burst::RequestFacts { note: None, ..request(1, "") });
    assert_eq!(plan(&snapshot), [BurstAction::Cancel { request: "req-1".to_owned() }]);
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().short_since_ms = Some(NOW - 1_000);
    assert_eq!(plan(&snapshot), [BurstAction::WakeAt { at_ms: NOW + 4_000 }]);
    // Its lease was reclaimed, and its pods are made again a little later.
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().kept_until_ms = NOW + 60_000;
    assert_eq!(plan(&snapshot), [BurstAction::WakeAt { at_ms: NOW + 60_000 }]);

    snapshot.requests = Some(BTreeMap::new());
    with_lease(&mut snapshot, "lease-3", 2, LeaseStage::Active);
    let renewal = BurstAction::WakeAt { at_ms: NOW + 2_400_000 };
    assert!(plan(&snapshot).is_empty(), "not known to be idle");
    snapshot.leases.as_mut().unwrap().get_mut("lease-3").unwrap().idle_since_ms = Some(NOW - 59_000);
    assert_eq!(plan(&snapshot), [BurstAction::WakeAt { at_ms: NOW + 1_000 }]);
    snapshot.now_ms += 1_000;
    assert_eq!(plan(&snapshot), [BurstAction::ReleaseLease { lease: "lease-3".to_owned() }]);
    // It replaces a lease that was reclaimed, and its pods are made again a little later.
    snapshot.requests.as_mut().unwrap().get_mut("req-3").unwrap().kept_until_ms = NOW + 30_000;
    assert_eq!(plan(&snapshot), [BurstAction::WakeAt { at_ms: NOW + 30_000 }]);
    let rules = std::mem::take(&mut snapshot.namespaces);
    assert_eq!(plan(&snapshot), [BurstAction::ReleaseLease { lease: "lease-3".to_owned() }], "opted out");
    snapshot.namespaces = rules;
    snapshot.requests.as_mut().unwrap().get_mut("req-3").unwrap().kept_until_ms = 0;
    // One running pod keeps the whole lease; a finished one does not.
    snapshot.pods.push(pod("a"));
    snapshot.pods[0].facts.node = Some("lease-3".to_owned());
    assert_eq!(plan(&snapshot), [renewal]);
    snapshot.pods[0].facts.is_finished = true;
    assert_eq!(plan(&snapshot).len(), 1);
    // Requests that people made are not cancelled.
    snapshot.requests.as_mut().unwrap().get_mut("req-3").unwrap().note = None;
    assert!(plan(&snapshot).is_empty());
}

#[test]
fn demand_that_shrinks_is_requested_again() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.request = Some("req-1".to_owned());
    with_request(&mut snapshot, "req-1", request(3, &group()));
    assert!(plan(&snapshot).contains(&BurstAction::Cancel { request: "req-1".to_owned() }));
    snapshot.requests = Some(BTreeMap::new());
    assert!(submissions(&plan(&snapshot)).is_empty(), "not known to have ended");
    let ended = EndedRequest { has_failed: false, message: String::new(), at_ms: NOW };
    snapshot.ended.insert("req-1".to_owned(), ended);
    let actions = plan(&snapshot);
    assert_eq!(submissions(&actions)[0].request.gpus.count, 1);
}

#[test]
fn failures_are_reported_and_retried_later() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.request = Some("req-1".to_owned());
    let ended = EndedRequest { has_failed: true, message: "no donor could".to_owned(), at_ms: NOW - 1_000 };
    snapshot.ended.insert("req-1".to_owned(), ended);
    let actions = plan(&snapshot);
    assert!(submissions(&actions).is_empty() && notes_on(&actions, "a")[0].text.contains("no donor could"));
    assert!(actions.contains(&BurstAction::WakeAt { at_ms: NOW + 59_000 }));
    snapshot.now_ms = NOW + 59_000;
    let key = submissions(&plan(&snapshot))[0].key.clone();
    snapshot.refused.insert(key, ("policy says no".to_owned(), NOW + 120_000));
    let actions = plan(&snapshot);
    let note = notes_on(&actions, "a")[0].clone();
    assert!(submissions(&actions).is_empty() && note.reason == "ComityRefused");
    // Another refusal is the same event: its text contains no time.
    snapshot.refused.values_mut().for_each(|(_, until)| *until += 30_000);
    assert_eq!(*notes_on(&plan(&snapshot), "a")[0], note);
}

#[test]
fn a_pod_pinned_to_a_lease_that_is_gone_is_made_again() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.pinned = Some("lease-1".to_owned());
    let replace = BurstAction::Replace { pod: snapshot.pods[0].facts.pod.clone(), lease: "lease-1".to_owned() };
    assert!(plan(&snapshot).contains(&replace));
    snapshot.leases = None;
    assert!(plan(&snapshot).is_empty(), "cannot see is not gone");
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Active);
    assert!(!plan(&snapshot).contains(&replace));
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Ending);
    snapshot.pods[0].facts.has_controller = false;
    let actions = plan(&snapshot);
    assert!(!actions.contains(&replace) && notes_on(&actions, "a")[0].is_warning);
}

#[test]
fn a_pod_that_others_pinned_to_an_active_lease_of_its_namespace_may_go_there() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.pinned = Some("lease-1".to_owned());
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Coming);
    assert!(plan(&snapshot).is_empty(), "its node is not there yet");
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Active);
    let sent = |snapshot: &BurstSnapshot| {
        let actions = plan(snapshot);
        let of = |action: &BurstAction| match action {
            BurstAction::Tolerate { lease, .. } => Some(format!("tolerates {lease}")),
            BurstAction::Pin { lease, .. } => Some(format!("without the gate to {lease}")),
            _ => None,
        };
        actions.iter().find_map(of)
    };
    assert_eq!(sent(&snapshot).as_deref(), Some("tolerates lease-1"));
    snapshot.pods[0].facts.gates = vec![GATE.to_owned()];
    assert_eq!(sent(&snapshot).as_deref(), Some("without the gate to lease-1"));
    snapshot.pods[0].facts.gates.push("kueue.x-k8s.io/admission".to_owned());
    assert_eq!(sent(&snapshot), None, "the owner of the other gate decides first");
    snapshot.pods[0].facts.gates.clear();
    snapshot.leases.as_mut().unwrap().get_mut("lease-1").unwrap().namespace = "another".to_owned();
    assert_eq!(sent(&snapshot), None, "a lease of somebody else");
    snapshot.pods[0].facts.gates = vec![GATE.to_owned()];
    assert_eq!(released(&plan(&snapshot)), Vec::<&str>::new(), "it is held");
    snapshot.now_ms += snapshot.hold_ms;
    assert_eq!(released(&plan(&snapshot)), ["a"], "and not for ever");
}

#[test]
fn a_queues_pod_is_not_made_again_for_the_same_lost_lease() {
    let mut snapshot = snapshot(vec![pending("a")]);
    snapshot.pods[0].facts.pinned = Some("lease-1".to_owned());
    snapshot.pods[0].facts.is_of_queue = true;
    assert!(plan(&snapshot).is_empty());
}
