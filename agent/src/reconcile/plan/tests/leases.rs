//! Leases on either side, from their first step to their end.

use std::time::Duration;

use comity_agent_model::lease::reclaim::Reclaim;

use super::*;
use crate::reconcile::steps::lease::LeaseStep;
use crate::usage::{LeaseUse, LeaseUses};

#[test]
fn a_lease_goes_from_admission_to_its_end_on_the_donor() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    sim.records.outbox.clear();
    sim.desired.leases[0].donor_ready = true;
    assert_eq!(sim.settle(), [""; 0]);
    sim.restart();
    assert_eq!(sim.settle(), ["configure-fabric"], "a restart needs the tunnel and nothing else");
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
    sim.records.outbox.clear();
    let record = DonorRecord { clean_acked: true, ..DonorRecord::clone(&sim.records.donors[&LEASE]) };
    sim.records.donors.insert(LEASE, Arc::new(record));
    sim.live.settling.insert(ReportKey::Clean(LEASE));
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.leases.clear();
    assert_eq!(sim.settle(), ["remove-lease"], "the record goes once the broker has forgotten the lease");
    assert!(sim.records.donors.is_empty());
}

#[test]
fn the_tunnel_of_a_revoked_origin_does_not_wait_for_the_end_of_its_lease() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    sim.settle();
    sim.records.outbox.clear();
    sim = sim.peering(PeeringState::Draining, 1, Bundles::Known);
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.names(), ["close-peering", "remove-lease"], "one plan does both at once");
    // A donor that was offline has the same to do when it is back.
    sim.restart();
    assert_eq!(sim.settle(), ["close-peering", "remove-lease"]);
    assert!(sim.records.peerings.is_empty() && sim.records.donors[&LEASE].removed);
}

#[test]
fn a_prepared_lease_marks_its_nodes_again_and_one_that_ends_does_not() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.live.unmarked = BTreeSet::from([LEASE, LeaseId(9)]);
    assert_eq!(sim.names(), ["admit-lease"], "nothing is prepared yet");
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential", "reopen-lease"]);
    assert_eq!(sim.settle(), [""; 0]);
    sim.live.unmarked = BTreeSet::from([LEASE]);
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
}

#[test]
fn a_lease_goes_from_credential_to_its_end_on_the_origin() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    assert_eq!(sim.settle(), ["open-credential", "accept-credential", "probe"]);
    sim.restart();
    sim.records.outbox.clear();
    sim.desired.leases[0].origin_ready = true;
    let again = sim.settle();
    assert!(again.contains(&"accept-credential") && !again.contains(&"open-credential"), "{again:?}");
    sim.desired.envelopes.clear();
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
}

#[test]
fn saved_work_is_reported_once_and_only_under_reclaim() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    sim.live.saved = BTreeSet::from([LEASE]);
    assert_eq!(sim.settle(), [""; 0], "nobody asked");
    sim.desired.leases[0].state = Some(LeaseState::Reclaiming);
    sim.desired.leases[0].reclaim = Some(Reclaim { reason: None, since_ms: 0, deadline_ms: 0 });
    assert_eq!(sim.settle(), ["report-checkpointed"]);
    // Acknowledged, and the desired state does not show it yet.
    sim.records.outbox.clear();
    sim.live.settling.insert(ReportKey::Checkpointed(LEASE));
    assert_eq!(sim.settle(), [""; 0]);
    sim.restart();
    assert_eq!(sim.settle(), ["configure-fabric"], "what runs is looked at again before anything is said");
}

/// A lent lease that is released when idle, and whose steps are done.
fn lent() -> Sim {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].release_idle_ms = 60_000;
    sim.settle();
    sim.records.outbox.clear();
    sim
}

fn seen(idle_since: Option<u64>) -> LeaseUses {
    let idle_since = idle_since.map(Duration::from_secs);
    [(LEASE, LeaseUse { idle_since, is_reported: false })].into_iter().collect()
}

#[test]
fn idleness_is_reported_once_it_lasts_and_use_if_the_broker_believes_otherwise() {
    let mut sim = lent();
    sim.live.uses = seen(None);
    assert_eq!(sim.settle(), [""; 0], "the broker counts it as in use");
    sim.live.uses = seen(Some(100));
    sim.live.elapsed = Duration::from_millis(104_999);
    assert_eq!(sim.settle(), [""; 0], "a short pause between pods");
    sim.live.elapsed = Duration::from_secs(105);
    assert_eq!(sim.settle(), ["report-use"]);
    sim.records.outbox.clear();
    sim.live.settling.insert(ReportKey::Use(LEASE));
    assert_eq!(sim.settle(), [""; 0], "the desired state does not show it yet");
    sim.live.settling.clear();
    sim.desired.leases[0].idle_since_ms = NOW;
    assert_eq!(sim.settle(), [""; 0]);

    // Use in between, too short for a report, begins a new idle time.
    sim.live.uses = seen(Some(120));
    sim.live.elapsed = Duration::from_secs(130);
    assert_eq!(sim.settle(), ["report-use"]);
    sim.records.outbox.clear();
    sim.live.uses = seen(None);
    assert_eq!(sim.settle(), ["report-use"]);
}

#[test]
fn use_is_reported_only_of_active_leases_with_a_limit_and_to_a_connected_broker() {
    let changes: [fn(&mut Sim); 4] = [
        |sim| sim.desired.leases[0].release_idle_ms = 0,
        |sim| sim.desired.leases[0].state = Some(LeaseState::Suspect),
        |sim| sim.is_live = false,
        |sim| sim.live.uses = LeaseUses::default(),
    ];
    for change in changes {
        let mut sim = lent();
        (sim.live.uses, sim.live.elapsed) = (seen(Some(1)), Duration::from_secs(100));
        change(&mut sim);
        assert_eq!(sim.settle(), [""; 0]);
    }
}

#[test]
fn a_credential_is_renewed_after_two_thirds_of_its_life_and_sealed_again_in_a_new_epoch() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.settle();
    sim.records.outbox.clear();
    sim.desired.leases[0].donor_ready = true;
    sim.now_ms = NOW + 399_000;
    assert_eq!(sim.settle(), [""; 0]);
    sim.now_ms = NOW + 400_000;
    assert_eq!(sim.settle(), ["renew-credential"]);
    sim.records.outbox.clear();
    sim.change_peering(2, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim = sim.peering(PeeringState::Established, 2, Bundles::Known);
    sim.desired.peerings[0].reported_established = true;
    let done = sim.settle();
    assert!(done.contains(&"seal-credential") && done.contains(&"configure-fabric"), "{done:?}");
}

#[test]
fn the_donor_keeps_its_own_limits_and_its_fence() {
    let mut sim = connected_donor();
    sim.policy.max_lent_gpus = Some(1);
    let mut second = lease("lease-2", 8, LeaseState::Placed);
    second.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
    sim.desired.leases = vec![second, lease("lease-1", 7, LeaseState::Placed)];
    let steps = sim.plan();
    assert!(
        steps.iter().any(|step| matches!(step, Step::Lease(LeaseStep::AdmitLease(admit)) if admit.lease == LEASE)),
        "{steps:?}"
    );
    let refused = steps.iter().find_map(|step| match step {
        Step::Lease(LeaseStep::RefuseLease(refuse)) => Some((refuse.lease, refuse.code)),
        _ => None,
    });
    assert_eq!(refused, Some((LeaseId(2), "local-policy")));
    // Later messages with an older token are outdated, whoever sends them.
    let mut sim = connected_donor();
    sim.records.fence = 9;
    sim.desired.leases = vec![lease("lease-1", 9, LeaseState::Active)];
    assert_eq!(sim.names(), ["refuse-lease"]);
    sim.put_donor(LEASE, 10, |_| {});
    sim.desired.leases = vec![lease("lease-1", 9, LeaseState::Ending)];
    assert_eq!(sim.names(), [""; 0], "an older token tears nothing down");
}

#[test]
fn a_lease_whose_gpus_local_work_took_is_refused_while_it_is_set_up() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.nodes = None;
    assert!(sim.names().is_empty(), "the nodes are not known yet");
    // Local use is counted from the last device down, so the lease's own is free.
    sim.nodes = Some(two_gpus([0, 1_000]));
    assert_eq!(sim.names(), ["admit-lease"]);
    let mut later = lease("lease-2", 8, LeaseState::Placed);
    later.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
    sim.put_donor(LEASE, 7, |_| {});
    sim.desired.leases.push(later);
    let refused = |sim: &Sim| {
        let steps = sim.plan();
        let refused = steps.into_iter().filter_map(|step| match step {
            Step::Lease(LeaseStep::RefuseLease(refuse)) => Some((refuse.lease, refuse.code, refuse.message)),
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };
    let seen = refused(&sim);
    let [(LeaseId(2), "local-use", message)] = seen.as_slice() else { panic!("{seen:?}") };
    assert!(message.contains("leases need 2000 thousandths of GPUs there, and 1000 are left"), "{message}");
    sim.nodes = Some(two_gpus([1_000, 1_000]));
    assert_eq!(refused(&sim).len(), 2, "neither is active");

    // What is active, the broker calls back; it makes no later lease refuse its place once it is on its way out.
    sim.desired.leases[0].state = Some(LeaseState::Active);
    assert_eq!(refused(&sim).len(), 1);
    sim.nodes = Some(two_gpus([0, 1_000]));
    for (state, count) in [(LeaseState::Active, 1), (LeaseState::Reclaiming, 0), (LeaseState::Ending, 0)] {
        sim.desired.leases[0].state = Some(state);
        assert_eq!(refused(&sim).len(), count, "{state:?}");
    }
    sim.desired.leases[0].state = Some(LeaseState::Active);
    sim.is_live = false;
    assert!(refused(&sim).is_empty(), "an old desired state");
    sim.is_live = true;
    sim.settle();
    assert!(sim.names().is_empty(), "it is reported once");
}

#[test]
fn only_interchangeable_devices_are_counted_together() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed)];
    let is_refused = |sim: &Sim| sim.names().contains(&"refuse-lease");
    let mut nodes = two_gpus([1_000, 0]);
    sim.nodes = Some(nodes.clone());
    assert!(!is_refused(&sim), "the other GPU is free, and nobody knows which one the local pod holds");
    nodes[0].devices[1].product_name = "another".into();
    sim.nodes = Some(nodes.clone());
    assert!(is_refused(&sim));
    nodes[0].devices[0].local_use_milli = 0;
    sim.nodes = Some(nodes.clone());
    assert!(!is_refused(&sim));
    nodes[0].devices.clear();
    sim.nodes = Some(nodes);
    assert!(is_refused(&sim), "a device that is not there is not lent");
    sim.put_donor(LEASE, 7, |_| {});
    assert!(!is_refused(&sim), "once the lease is admitted, a node without its devices is the broker's to judge");
}

#[test]
fn silence_tears_nothing_down_until_end_and_grace_have_passed() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].expires_at_ms = NOW + 10_000;
    sim.settle();
    sim.records.outbox.clear();
    sim.is_live = false;
    sim.live.unwanted =
        BTreeSet::from([ObjectId::Lease(LEASE), ObjectId::Lease(LeaseId(9)), ObjectId::Peering(PEERING)]);
    sim.now_ms = NOW + 70_000;
    assert!(!sim.names().contains(&"remove-lease"));
    sim.now_ms = NOW + 70_001;
    assert_eq!(sim.settle(), ["remove-lease"]);
    // The broker is back and gave the lease a full fresh term: it is made again.
    sim.is_live = true;
    sim.live.unwanted.clear();
    sim.desired.leases[0].expires_at_ms = NOW + 500_000;
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
}

#[test]
fn unwanted_objects_go_one_at_a_time_and_only_while_a_broker_is_connected() {
    let mut sim = connected_donor();
    sim.live.unwanted = BTreeSet::from([ObjectId::Lease(LeaseId(8)), ObjectId::Lease(LeaseId(9))]);
    sim.is_live = false;
    assert_eq!(sim.names(), [""; 0]);
    sim.is_live = true;
    assert_eq!(sim.names(), ["remove-lease"]);
    sim.desired.leases = vec![lease("lease-8", 1, LeaseState::Ending)];
    assert!(
        sim.plan()
            .iter()
            .all(|step| !matches!(step, Step::Lease(LeaseStep::RemoveLease(remove)) if remove.lease == LeaseId(8) && remove.side.is_none()))
    );
}
