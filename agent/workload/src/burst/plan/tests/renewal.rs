//! Leases that pods use are renewed, and pods are warned of an end.

use super::*;

const MINUTE: u64 = 60_000;

/// A pod that runs on lease-1, of one hour, which ends after `left`.
fn running(left: u64) -> BurstSnapshot {
    let mut snapshot = snapshot(vec![pod("works")]);
    with_lease(&mut snapshot, "lease-1", 1, LeaseStage::Active);
    snapshot.pods[0].facts.node = Some("lease-1".to_owned());
    snapshot.leases.as_mut().unwrap().get_mut("lease-1").unwrap().expires_at_ms = NOW + left;
    snapshot
}

fn renewals(snapshot: &BurstSnapshot) -> usize {
    plan(snapshot).iter().filter(|action| matches!(action, BurstAction::Renew { .. })).count()
}

fn wake_at(snapshot: &BurstSnapshot) -> Option<u64> {
    plan(snapshot).into_iter().find_map(|action| match action {
        BurstAction::WakeAt { at_ms } => Some(at_ms),
        _ => None,
    })
}

#[test]
fn a_lease_that_pods_use_is_renewed_when_a_third_of_its_term_is_left() {
    assert_eq!(renewals(&running(21 * MINUTE)), 0);
    assert_eq!(wake_at(&running(21 * MINUTE)), Some(NOW + MINUTE));
    let action = BurstAction::Renew { lease: "lease-1".to_owned(), expires_at_ms: NOW + 20 * MINUTE };
    assert!(plan(&running(20 * MINUTE)).contains(&action));
    assert!(notes_on(&plan(&running(MINUTE)), "works").is_empty(), "its renewal is under way");
}

#[test]
fn a_lease_without_pods_and_one_that_ends_are_not_renewed() {
    let mut idle = running(MINUTE);
    idle.pods[0].facts.is_finished = true;
    let mut reclaimed = running(MINUTE);
    reclaimed.leases.as_mut().unwrap().get_mut("lease-1").unwrap().stage = LeaseStage::Reclaiming;
    for snapshot in [idle, reclaimed] {
        assert_eq!(renewals(&snapshot), 0);
    }
}

#[test]
fn pods_are_warned_at_a_fifth_of_the_term_and_at_five_minutes_if_the_broker_refuses() {
    let refused = |left: u64| {
        let mut snapshot = running(left);
        let reason = ("the quota is used up".to_owned(), NOW + MINUTE);
        snapshot.renewals_refused.insert("lease-1".to_owned(), reason);
        snapshot
    };
    assert!(notes_on(&plan(&refused(13 * MINUTE)), "works").is_empty());
    for (left, part) in [(12, "lease-1 ends at"), (5, "lease-1 ends very soon")] {
        let actions = plan(&refused(left * MINUTE));
        let note = notes_on(&actions, "works")[0];
        assert!(note.is_warning && note.text.contains(part) && note.text.contains("quota is used up"), "{note:?}");
        assert_eq!(renewals(&refused(left * MINUTE)), 0);
    }
    // The broker is asked again after the pause.
    let mut later = refused(5 * MINUTE);
    later.now_ms += MINUTE;
    assert_eq!(renewals(&later), 1);
}

#[test]
fn people_renew_the_leases_that_they_requested() {
    let mut snapshot = running(5 * MINUTE);
    let request = snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap();
    (request.note, request.is_submitted_here) = (None, false);
    assert_eq!(renewals(&snapshot), 0);
    assert!(notes_on(&plan(&snapshot), "works")[0].text.contains("comity lease renew lease-1"));
}

#[test]
fn the_lease_of_a_gpu_request_is_renewed_while_pods_use_it() {
    let mut snapshot = running(5 * MINUTE);
    snapshot.requests.as_mut().unwrap().get_mut("req-1").unwrap().note = None;
    assert_eq!(renewals(&snapshot), 1);
}
