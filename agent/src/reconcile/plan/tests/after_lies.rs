//! A broker lied, and an honest one speaks now: what the lies left behind keeps nothing from working.

use super::*;
use crate::reconcile::steps::lease::{LeaseStep, RefuseLease, RemoveLease};
use crate::reconcile::steps::peering::{MakeKeys, ReportEstablished};

fn refusals(sim: &Sim) -> Vec<(LeaseId, &'static str)> {
    let refusal = |step: Step| match step {
        Step::Lease(LeaseStep::RefuseLease(RefuseLease { lease, code, .. })) => Some((lease, code)),
        _ => None,
    };
    sim.plan().into_iter().filter_map(refusal).collect()
}

/// A lease that this donor serves, with everything acknowledged.
fn serving() -> Sim {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    sim.settle();
    sim.desired.leases[0].donor_ready = true;
    sim.records.outbox.clear();
    assert_eq!(sim.settle(), [""; 0]);
    sim
}

fn of_epoch(step: &str, epoch: u32) -> Envelope {
    let mut envelope = envelope(step, "");
    envelope.key.epoch = epoch;
    envelope
}

/// The broker let a handshake of the highest epoch succeed. The next honest epoch has a lower number.
#[test]
fn broker_epoch_max_wedges_peering() {
    for side in [Side::Donor, Side::Origin] {
        let mut sim = connected(side).peering(PeeringState::Established, u32::MAX, Bundles::Known);
        sim.desired.peerings[0].reported_established = true;
        sim.change_peering(u32::MAX, |record| {
            record.preshared = Some(SecretKey::new([5; 32]));
            record.remote = Some(remote());
        });
        sim.settle();
        assert_eq!(sim.live.tunnels[&PEERING], u32::MAX);

        sim = sim.peering(PeeringState::Proposed, 2, Bundles::Unknown);
        assert_eq!(sim.settle(), ["make-keys"]);
        assert_eq!(sim.live.tunnels[&PEERING], u32::MAX, "it carries traffic until then");
        sim = sim.peering(PeeringState::Authenticating, 2, Bundles::Known);
        let steps: &[&str] = match side {
            Side::Donor => {
                sim.desired.envelopes = vec![of_epoch("proof", 2)];
                &["send-psk", "check-proof"]
            }
            Side::Origin => {
                sim.desired.envelopes = vec![of_epoch("psk", 2)];
                &["open-psk"]
            }
        };
        assert_eq!(sim.settle(), steps);
        sim.desired.envelopes.clear();
        sim = sim.peering(PeeringState::Establishing, 2, Bundles::Known);
        assert_eq!(sim.settle(), ["configure-fabric", "report-established"]);
        sim = sim.peering(PeeringState::Established, 2, Bundles::Known);
        sim.desired.peerings[0].reported_established = true;
        assert_eq!(sim.settle(), ["forget-peering"]);
        assert_eq!(sim.live.tunnels[&PEERING], 2);
        let epochs: Vec<u32> = sim.records.epochs(PEERING).map(|record| record.epoch).collect();
        assert_eq!(epochs, [2], "a restart finds no other tunnel");
    }
}

/// What a restart remembers may be older than the records: it forgets no keys.
#[test]
fn only_a_connected_broker_makes_an_agent_forget_the_keys_of_other_epochs() {
    let mut sim = connected_donor();
    sim.change_peering(2, |_| {});
    sim.is_live = false;
    assert_eq!(sim.settle(), [""; 0]);
    sim.is_live = true;
    assert_eq!(sim.settle(), ["forget-peering"]);
}

/// The broker names another epoch while envelopes of the true one wait. They stay, and are opened once it is honest.
#[test]
fn broker_names_another_epoch_during_a_handshake() {
    for (side, step, opens) in [(Side::Donor, "proof", "check-proof"), (Side::Origin, "psk", "open-psk")] {
        for lie in [0, 9, u32::MAX] {
            let mut sim = Sim::new(side).peering(PeeringState::Proposed, 1, Bundles::Unknown);
            sim.settle();
            sim = sim.peering(PeeringState::Authenticating, 1, Bundles::Known);
            sim.settle();
            sim.desired.envelopes = vec![envelope(step, "")];
            sim.desired.peerings[0].peering.epoch = lie;
            assert_eq!(sim.settle(), ["fail-peering"], "{lie}: it is reported, and no envelope is acknowledged");
            sim.desired.peerings[0].peering.epoch = 1;
            assert_eq!(sim.settle(), [opens], "{lie}");
        }
    }
}

/// An epoch that failed because of an envelope opens none until the report is known; then it looks again.
#[test]
fn an_envelope_that_did_not_open_is_tried_again_once_the_failure_is_known() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    assert_eq!(sim.names(), ["open-credential"]);
    sim.report(ReportKey::PeeringFailed(PEERING, 1));
    assert_eq!(sim.settle(), [""; 0]);
    // The broker swallowed the report, and another one shows the true envelope.
    sim.records.outbox.clear();
    assert_eq!(sim.names(), ["open-credential"]);
}

#[test]
fn broker_names_peerings_without_end() {
    let mut sim = Sim::new(Side::Donor).peering(PeeringState::Proposed, 1, Bundles::Unknown);
    for number in 2..=1_024 {
        let record = PeeringRecord { peering: PeeringId(number), ..peering_record("donor", Side::Donor, 1) };
        sim.records.peerings.insert((PeeringId(number), 1), Arc::new(record));
    }
    assert_eq!(sim.names(), ["make-keys"]);
    let record = PeeringRecord { peering: PeeringId(9_000), ..peering_record("donor", Side::Donor, 1) };
    sim.records.peerings.insert((PeeringId(9_000), 1), Arc::new(record));
    assert_eq!(sim.settle(), ["fail-peering"], "no disk fills");
    sim.records.outbox.clear();
    // An epoch of one that is there goes on.
    sim.records.peerings.remove(&(PeeringId(9_000), 1));
    sim.change_peering(1, |_| {});
    assert_eq!(sim.peering(PeeringState::Proposed, 2, Bundles::Unknown).names(), ["make-keys"]);
}

/// The broker acknowledged an end and did not write it down: the next one still waits for it.
#[test]
fn broker_acknowledges_an_end_that_it_forgets() {
    let mut sim = serving();
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
    sim.records.outbox.clear();
    let record = DonorRecord { clean_acked: true, ..DonorRecord::clone(&sim.records.donors[&LEASE]) };
    sim.records.donors.insert(LEASE, Arc::new(record));
    sim.live.settling = BTreeSet::from([ReportKey::Clean(LEASE)]);
    assert_eq!(sim.settle(), [""; 0], "the other side may take long");
    // On the stream of another broker the acknowledgement counts no more.
    sim.live.settling.clear();
    sim.is_live = false;
    assert_eq!(sim.settle(), [""; 0], "nobody is there to be told");
    sim.is_live = true;
    assert_eq!(sim.settle(), ["remove-lease"]);

    let mut sim = connected_donor().peering(PeeringState::Draining, 1, Bundles::Known);
    assert_eq!(sim.settle(), ["close-peering"]);
    sim.records.outbox.clear();
    sim.records.closed.insert(PEERING, 1);
    sim.live.settling = BTreeSet::from([ReportKey::Closed(PEERING)]);
    assert_eq!(sim.settle(), [""; 0]);
    sim.live.settling.clear();
    assert_eq!(sim.settle(), ["close-peering"]);
}

/// The broker lent once with the highest token that a donor takes. The honest ones that follow are lower.
#[test]
fn broker_skips_fencing_tokens() {
    let mut sim = serving();
    let lent = lease("lease-2", 7 + (1 << 26), LeaseState::Placed);
    sim.desired.leases = vec![lent];
    sim.nodes = Some(two_gpus([0, 0]));
    sim.records.donors.clear();
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    let fence = sim.records.fence;
    sim.records.outbox.clear();
    sim.records.donors.clear();
    // It is told, with the token above which the broker goes on, and not left to wait for the end of its hold.
    sim.desired.leases = vec![lease("lease-3", 8, LeaseState::Placed)];
    assert_eq!(refusals(&sim), [(LeaseId(3), "token-too-low")]);
    assert_eq!(sim.settle(), ["refuse-lease"]);
    sim.desired.leases = vec![lease("lease-4", fence + 1, LeaseState::Placed)];
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    // What is only remembered is told to nobody.
    sim.desired.leases = vec![lease("lease-5", 9, LeaseState::Active)];
    sim.is_live = false;
    assert_eq!(sim.settle(), [""; 0]);
}

/// The broker named the ids of later leases as ending, with tokens of its own. The honest lease of that id ends, too.
#[test]
fn broker_ends_leases_that_do_not_exist_yet() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", u64::MAX, LeaseState::Ending)];
    assert_eq!(sim.settle(), ["remove-lease"]);
    sim.records.outbox.clear();
    sim.put_donor(LEASE, u64::MAX, |record| {
        (record.fencing_token, record.removed, record.ended) = (u64::MAX, true, true);
    });
    sim.desired.leases = vec![lease("lease-1", 8, LeaseState::Ending)];
    let reported = |step: Step| match step {
        Step::Lease(LeaseStep::RemoveLease(RemoveLease { report, .. })) => report,
        _ => None,
    };
    assert_eq!(sim.plan().into_iter().filter_map(reported).collect::<Vec<_>>(), [8]);
}

/// The broker prolonged a lease for ever, and went silent. The donor's own limit holds.
#[test]
fn broker_prolongs_a_lease_and_goes_silent() {
    let mut sim = serving();
    sim.policy.max_lease_seconds = Some(3_600);
    sim.desired.leases[0].expires_at_ms = u64::MAX;
    sim.is_live = false;
    sim.now_ms = NOW + 3_600_000 + 60_000;
    assert!(!sim.names().contains(&"remove-lease"), "within the outage grace: {:?}", sim.names());
    sim.now_ms += 1;
    assert_eq!(sim.names(), ["remove-lease"]);
}

/// A step that waits for a tunnel which never comes up holds back neither the next epoch's keys nor its tunnel.
#[test]
fn a_tunnel_that_never_comes_up_holds_back_no_later_epoch() {
    let wait = |epoch| Step::from(ReportEstablished { peering: PEERING, epoch }).object();
    let next = Step::from(MakeKeys { peering: PEERING, epoch: 2, side: Side::Donor }).object();
    assert!(wait(1) != next && wait(1) != wait(2));
}
