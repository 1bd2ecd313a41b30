//! Leases on either side, from their first step to their end.

use comity_agent_model::lease::reclaim::Reclaim;

use super::*;
use crate::reconcile::steps::lease::LeaseStep;

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
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.leases.clear();
    assert_eq!(sim.settle(), ["remove-lease"], "the record goes once the broker has forgotten the lease");
    assert!(sim.records.donors.is_empty());
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
    sim.desired.leases = vec![lease("lease-2", 8, LeaseState::Placed), lease("lease-1", 7, LeaseState::Placed)];
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
    assert_eq!(sim.names(), [""; 0]);
    sim.put_donor(LEASE, 10, |_| {});
    sim.desired.leases = vec![lease("lease-1", 9, LeaseState::Ending)];
    assert_eq!(sim.names(), [""; 0], "an older token tears nothing down");
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
