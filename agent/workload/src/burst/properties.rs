//! Invariants of every plan, and of every run of plans whose actions are carried out.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::fixtures::{NOW, gated, lease, pending, pod, request, snapshot};
use super::group::BurstNote;
use super::plan::{BurstAction, plan};
use super::snapshot::{BurstSnapshot, EndedRequest, LeaseStage, PodView};

fn some_pod() -> impl Strategy<Value = PodView> {
    (0_u8..3, 0_u8..3, 1_u32..5, any::<bool>(), 0_u64..1_000, 0_u32..10_000).prop_map(
        |(kind, owner, gpus, is_gang, age, uid)| {
            let name = format!("p{uid}");
            let mut pod = match kind {
                0 => gated(&name),
                1 => pending(&name),
                _ => pod(&name),
            };
            pod.facts.owner.uid = format!("owner-{owner}-{is_gang}");
            pod.facts.owner.is_gang = is_gang;
            pod.facts.shape.as_mut().unwrap().gpus = gpus;
            pod.facts.created_ms = NOW - age;
            pod.seen_ms = NOW - age;
            pod
        },
    )
}

fn some_view() -> impl Strategy<Value = BurstSnapshot> {
    (proptest::collection::vec(some_pod(), 0..24), 0_u64..6, 0_u32..20, 1_u32..6).prop_map(
        |(pods, free, max_gpus, max_requests)| {
            let mut unique = BTreeMap::new();
            for pod in pods {
                unique.insert(pod.facts.pod.uid.clone(), pod);
            }
            let mut snapshot = snapshot(unique.into_values().collect());
            snapshot.local = vec![[("nvidia.com/gpu".to_owned(), free)].into()];
            let rules = snapshot.namespaces.get_mut("team-a").unwrap().as_mut().unwrap();
            (rules.max_gpus, rules.max_requests) = (max_gpus, max_requests);
            snapshot
        },
    )
}

fn wanted(snapshot: &BurstSnapshot) -> u32 {
    let waits = |pod: &&PodView| {
        let facts = &pod.facts;
        (facts.is_gated() || facts.is_unschedulable) && facts.request.is_none() && facts.node.is_none()
    };
    snapshot.pods.iter().filter(waits).map(|pod| pod.facts.shape.as_ref().unwrap().gpus).sum()
}

fn asked(actions: &[BurstAction]) -> u32 {
    let count = |action: &BurstAction| match action {
        BurstAction::Submit(one) => one.request.gpus.count,
        _ => 0,
    };
    actions.iter().map(count).sum()
}

/// Carries the actions out as cluster and broker would; grants every request at once.
fn carry_out(snapshot: &mut BurstSnapshot, actions: &[BurstAction], next: &mut u32) {
    let facts = |snapshot: &mut BurstSnapshot, uid: &str, change: &dyn Fn(&mut super::PodFacts)| {
        snapshot.pods.iter_mut().filter(|pod| pod.facts.pod.uid == uid).for_each(|pod| change(&mut pod.facts));
    };
    for action in actions {
        match action {
            BurstAction::Submit(one) => {
                *next += 1;
                let (id, lease_id) = (format!("req-{next}"), format!("lease-{next}"));
                let count = one.request.gpus.count;
                let mut facts_of = request(count, "");
                facts_of.note = BurstNote::parse(&one.request.note.to_string());
                (facts_of.is_queued, facts_of.lease) = (false, Some(lease_id.clone()));
                snapshot.requests.as_mut().unwrap().insert(id.clone(), facts_of);
                snapshot.leases.as_mut().unwrap().insert(lease_id, lease(&id, count, LeaseStage::Active));
                for pod in &one.pods {
                    facts(snapshot, &pod.uid, &|pod| pod.request = Some(id.clone()));
                }
            }
            BurstAction::Assign { pod, request } => {
                facts(snapshot, &pod.uid, &|pod| pod.request = Some(request.clone()))
            }
            BurstAction::Pin { pod, lease, request } | BurstAction::Tolerate { pod, lease, request } => {
                facts(snapshot, &pod.uid, &|pod| {
                    (pod.request, pod.lease) = (Some(request.clone()), Some(lease.clone()));
                    (pod.node, pod.is_unschedulable) = (Some(lease.clone()), false);
                    pod.gates.clear();
                });
            }
            BurstAction::Ungate { pod } => facts(snapshot, &pod.uid, &|pod| pod.gates.clear()),
            BurstAction::Cancel { request } => {
                snapshot.requests.as_mut().unwrap().remove(request);
                let ended = EndedRequest { has_failed: false, message: String::new(), at_ms: snapshot.now_ms };
                snapshot.ended.insert(request.clone(), ended);
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn requests_never_exceed_the_demand_of_pods_or_the_limits(snapshot in some_view()) {
        let actions = plan(&snapshot);
        let rules = snapshot.namespaces["team-a"].as_ref().unwrap();
        prop_assert!(asked(&actions) <= wanted(&snapshot));
        prop_assert!(asked(&actions) <= rules.max_gpus);
        let requests = actions.iter().filter(|action| matches!(action, BurstAction::Submit(_))).count();
        prop_assert!(requests <= usize::try_from(rules.max_requests).unwrap());
    }

    #[test]
    fn every_pod_is_in_at_most_one_request_and_every_request_has_just_its_pods(snapshot in some_view()) {
        let mut seen = BTreeSet::new();
        for action in plan(&snapshot) {
            match action {
                BurstAction::Submit(one) => {
                    let mut gpus = 0;
                    for pod in &one.pods {
                        prop_assert!(seen.insert(pod.uid.clone()), "{} twice", pod.uid);
                        let facts = snapshot.pods.iter().find(|facts| facts.facts.pod == *pod).unwrap();
                        gpus += facts.facts.shape.as_ref().unwrap().gpus;
                    }
                    prop_assert_eq!(gpus, one.request.gpus.count);
                }
                BurstAction::Assign { pod, .. } | BurstAction::Ungate { pod } => {
                    prop_assert!(seen.insert(pod.uid.clone()), "{} twice", pod.uid);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn the_order_of_pods_does_not_change_the_plan(snapshot in some_view()) {
        let mut turned = snapshot.clone();
        turned.pods.reverse();
        prop_assert_eq!(plan(&snapshot), plan(&turned));
    }

    #[test]
    fn repeated_plans_converge_within_the_limits(mut snapshot in some_view()) {
        let limit = snapshot.namespaces["team-a"].as_ref().unwrap().max_gpus;
        let mut next = 0;
        for round in 0..8 {
            snapshot.now_ms += 2_000;
            let actions = plan(&snapshot);
            carry_out(&mut snapshot, &actions, &mut next);
            let held: u32 = snapshot.requests.as_ref().unwrap().values().map(|request| request.gpus).sum();
            prop_assert!(held <= limit);
            let used: u32 = snapshot.pods.iter().filter(|pod| pod.facts.lease.is_some())
                .map(|pod| pod.facts.shape.as_ref().unwrap().gpus).sum();
            prop_assert!(used <= held, "leases hold {held}, pods on them use {used}");
            let acts = |action: &&BurstAction| !matches!(action, BurstAction::WriteEvent { .. } | BurstAction::WakeAt { .. });
            prop_assert!(round < 6 || plan(&snapshot).iter().filter(acts).count() == 0, "{:?}", plan(&snapshot));
        }
    }
}
