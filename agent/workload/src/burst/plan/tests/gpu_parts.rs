//! Parts of GPUs: requested as pods state them, and never mixed.

use comity_agent_model::gpu_demand::Share;

use super::*;

/// A pod of its own that requests one `nvidia.com/gpu.shared`.
fn shared(name: &str) -> PodView {
    let mut pod = gated(name);
    let shape = pod.facts.shape.as_mut().unwrap();
    (shape.resource, shape.share) = ("nvidia.com/gpu.shared".to_owned(), None);
    pod
}

fn requested_shares(snapshot: &BurstSnapshot) -> Vec<Option<Share>> {
    submissions(&plan(snapshot)).iter().map(|one| one.request.gpus.share.clone()).collect()
}

#[test]
fn a_shared_gpu_is_the_namespaces_part_and_has_a_request_of_its_own() {
    let mut snapshot = snapshot(vec![shared("part"), gated("whole")]);
    let shares = requested_shares(&snapshot);
    assert!(shares.len() == 2 && shares.contains(&Some(Share::Milli(50))) && shares.contains(&Some(Share::Whole)));
    snapshot.namespaces.get_mut("team-a").unwrap().as_mut().unwrap().gpu_share_milli = 250;
    assert!(requested_shares(&snapshot).contains(&Some(Share::Milli(250))));
}

#[test]
fn a_lease_of_whole_gpus_serves_no_pod_that_wants_a_part() {
    let mut pod = gated("quarter");
    pod.facts.shape.as_mut().unwrap().share = Some(Share::Milli(250));
    let mut snapshot = snapshot(vec![pod]);
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Active);
    assert_eq!(requested_shares(&snapshot), [Some(Share::Milli(250))]);
}

#[test]
fn a_pod_whose_resource_the_donor_does_not_have_stays_and_its_lease_goes_back() {
    let mut pod = shared("part");
    pod.facts.request = Some("req-1".to_owned());
    let mut snapshot = snapshot(vec![pod]);
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Active);
    let actions = plan(&snapshot);
    assert_eq!(released(&actions), ["part"]);
    assert!(!actions.iter().any(|action| matches!(action, BurstAction::Pin { .. } | BurstAction::Submit(_))));
    let note = notes_on(&actions, "part")[0];
    assert_eq!(note.reason, "ComityNotOffloadable");
    for part in ["lease-1 by nvidia.com/gpu,", "requests nvidia.com/gpu.shared", "comity.dev/class"] {
        assert!(note.text.contains(part), "{}", note.text);
    }
    snapshot.leases.as_mut().unwrap().get_mut("lease-1").unwrap().idle_since_ms = Some(NOW - 60_000);
    assert!(plan(&snapshot).contains(&BurstAction::ReleaseLease { lease: "lease-1".to_owned() }));
}
