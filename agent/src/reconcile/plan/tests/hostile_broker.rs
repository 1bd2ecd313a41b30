//! A broker that lies: each attack is refused with a code, and nothing is admitted, sealed or opened for it.

use super::*;
use crate::reconcile::steps::lease::{AdmitLease, LeaseStep, RefuseLease, SealCredential};

/// A peering of the donor with a cluster that the broker made up.
const OTHER: PeeringId = PeeringId(2);

impl Sim {
    /// Codes of the refusals that are planned.
    fn refusals(&self) -> Vec<(LeaseId, &'static str)> {
        let refusal = |step: Step| match step {
            Step::Lease(LeaseStep::RefuseLease(RefuseLease { lease, code, .. })) => Some((lease, code)),
            _ => None,
        };
        self.plan().into_iter().filter_map(refusal).collect()
    }

    /// Whether the plan hands anything of a lease to the other side, or takes anything from it.
    fn serves(&self) -> bool {
        let serves = |step: &Step| {
            matches!(
                step,
                Step::Lease(
                    LeaseStep::AdmitLease(_)
                        | LeaseStep::PrepareLease(_)
                        | LeaseStep::SealCredential(_)
                        | LeaseStep::OpenCredential(_)
                        | LeaseStep::AcceptCredential(_)
                        | LeaseStep::Probe(_)
                )
            )
        };
        self.plan().iter().any(serves)
    }

    /// The broker enrolled a cluster of its own and peered it with this one; the handshake is complete.
    pub(super) fn with_peering_of_the_broker(mut self) -> Self {
        let mut directive = self.desired.peerings[0].clone();
        directive.peering.id = OTHER;
        match self.side {
            Side::Donor => directive.peering.origin = cluster("evil"),
            Side::Origin => directive.peering.donor = cluster("evil"),
        }
        self.desired.peerings.push(directive);
        let mut record = PeeringRecord::clone(&self.records.peerings[&(PEERING, 1)]);
        record.peering = OTHER;
        let remote = record.remote.as_mut().unwrap();
        remote.cluster = "evil".to_owned();
        self.records.peers.insert("evil".to_owned(), Arc::new(known_peer(remote)));
        self.records.peerings.insert((OTHER, 1), Arc::new(record));
        self.live.tunnels.insert(OTHER, 1);
        self
    }
}

fn admits(sim: &Sim, lease: LeaseId) -> bool {
    let admitted = |step: Step| match step {
        Step::Lease(LeaseStep::AdmitLease(AdmitLease { lease, .. })) => Some(lease),
        _ => None,
    };
    sim.plan().into_iter().filter_map(admitted).any(|admitted| admitted == lease)
}

/// The peering for which the plan seals a credential.
fn sealed_for(sim: &Sim) -> Option<PeeringId> {
    let sealed = |step: Step| match step {
        Step::Lease(LeaseStep::SealCredential(SealCredential { epoch, .. })) => Some(epoch.peering()),
        _ => None,
    };
    sim.plan().into_iter().find_map(sealed)
}

/// A lease that runs here, with everything acknowledged.
pub(super) fn running(side: Side) -> Sim {
    let mut sim = connected(side);
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Active)];
    if side == Side::Origin {
        sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    }
    sim.settle();
    sim.desired.envelopes.clear();
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].origin_ready = true;
    sim.records.outbox.clear();
    assert_eq!(sim.settle(), [""; 0]);
    sim
}

#[test]
fn broker_repoints_lease_to_other_peering() {
    let mut sim = running(Side::Donor).with_peering_of_the_broker();
    assert_eq!(sim.settle(), [""; 0]);
    // The credential is due again, and would be sealed for the other peering.
    sim.now_ms += 500_000;
    assert_eq!(sealed_for(&sim), Some(PEERING));
    sim.desired.leases[0].peering = OTHER;
    assert_eq!(sim.refusals(), [(LEASE, "lease-rebound")]);
    assert!(!sim.serves());
    // The name of the origin goes with it.
    sim.desired.leases[0].origin = cluster("evil");
    assert_eq!(sim.refusals(), [(LEASE, "lease-rebound")]);
    assert!(!sim.serves());

    // A virtual node's exchange does not serve it either.
    let mut sim = running(Side::Donor).with_peering_of_the_broker();
    sim.desired.leases[0].delivery = Delivery::VirtualNode;
    sim.desired.leases[0].peering = OTHER;
    assert!(!sim.plan().iter().any(|step| matches!(step, Step::Liqo(_))), "{:?}", sim.names());
}

#[test]
fn broker_lease_origin_differs_from_peer() {
    // A fresh lease in the name of an origin that may borrow, over the peering of another cluster.
    let mut sim = connected_donor().with_peering_of_the_broker();
    sim.policy.allowed_origins = BTreeSet::from(["origin".to_owned()]);
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed)];
    assert!(admits(&sim, LEASE));
    sim.desired.leases[0].peering = OTHER;
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));
    // The directive lies, too: the verified keys do not.
    sim.desired.peerings[1].peering.origin = cluster("origin");
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));
    // A peering in which this cluster is the origin carries nothing that it lends.
    sim.desired.leases[0].peering = PEERING;
    let peering = &mut sim.desired.peerings[0].peering;
    std::mem::swap(&mut peering.origin, &mut peering.donor);
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));
    // A peering that is not there.
    sim.desired.leases[0].peering = PeeringId(9);
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));
    sim.desired.skipped = vec![ObjectId::Peering(PeeringId(9))];
    assert_eq!((sim.refusals(), sim.serves()), (Vec::new(), false), "its message was not understood");
}

#[test]
fn broker_swaps_donor_under_origin() {
    let mut sim = connected_origin().with_peering_of_the_broker();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    let mut credential = envelope("credential", "lease-1");
    credential.key.peering = OTHER;
    sim.desired.envelopes = vec![credential];
    sim.desired.leases[0].peering = OTHER;
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));

    // Once there is a credential, neither the peering nor the donor changes.
    let mut sim = running(Side::Origin).with_peering_of_the_broker();
    let mut credential = envelope("credential", "lease-1");
    credential.key.peering = OTHER;
    credential.key.sequence = 9;
    sim.desired.envelopes = vec![credential];
    sim.desired.leases[0].peering = OTHER;
    sim.desired.leases[0].placement.as_mut().unwrap().donor = cluster("evil");
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "lease-rebound")], false));
}

/// The step that verifies bundles refuses another key (see the tests of `keys::continuity`). Whatever is in the
/// records, no credential follows it.
#[test]
fn broker_swaps_identity_key_between_epochs() {
    let other_key = comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(2)).public();
    // The directive names another key while the epoch stands.
    let mut sim = running(Side::Donor);
    sim.now_ms += 500_000;
    sim.desired.peerings[0].peer_identity_key = other_key.to_string();
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "identity-changed")], false));

    // A new epoch with keys of that identity.
    let with_epoch = |sim: Sim| {
        let mut sim = sim.peering(PeeringState::Established, 2, Bundles::Known);
        sim.desired.peerings[0].reported_established = true;
        sim.desired.peerings[0].peer_identity_key = other_key.to_string();
        sim.change_peering(2, |record| {
            record.preshared = Some(SecretKey::new([5; 32]));
            record.remote = Some(RemoteKeys { identity_key: other_key, ..remote() });
        });
        sim
    };
    let sim = with_epoch(running(Side::Donor));
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "identity-changed")], false));
    let mut sim = with_epoch(running(Side::Origin));
    let mut credential = envelope("credential", "lease-1");
    (credential.key.epoch, credential.key.sequence) = (2, 9);
    sim.desired.envelopes = vec![credential];
    assert_eq!(sim.refusals(), [(LEASE, "identity-changed")]);
    assert!(!sim.names().contains(&"open-credential"));

    // The lease remembers the key itself: a cluster that was forgotten is not a first use for it.
    let mut sim = with_epoch(running(Side::Donor));
    let decided = |trust| {
        let remote = RemoteKeys { cluster: "origin".to_owned(), identity_key: other_key, ..remote() };
        Arc::new(PeerRecord { trust, ..known_peer(&remote) })
    };
    sim.records.peers.insert("origin".to_owned(), decided(Trust::FirstUse));
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "identity-changed")], false));
    for trust in [Trust::Accepted, Trust::Voucher] {
        sim.records.peers.insert("origin".to_owned(), decided(trust));
        assert!(sim.refusals().is_empty() && sim.serves(), "a person or the institution replaced the key");
    }
}

#[test]
fn a_claimed_institution_is_replaced_by_the_vouched_one_and_does_not_suffice_where_vouchers_are_required() {
    let mut sim = connected_donor();
    sim.policy.denied_institutions = BTreeSet::from(["startup".to_owned()]);
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed)];
    sim.desired.peerings[0].peer_institution = "poly".to_owned();
    assert!(admits(&sim, LEASE));
    let vouched = |sim: &mut Sim, institution: &str| {
        let peer = PeerRecord::clone(&sim.records.peers["origin"]);
        let peer = PeerRecord { trust: Trust::Voucher, institution: institution.to_owned(), ..peer };
        sim.records.peers.insert("origin".to_owned(), Arc::new(peer));
    };
    vouched(&mut sim, "startup");
    assert_eq!(sim.refusals(), [(LEASE, "local-policy")], "the broker says poly, the voucher startup");

    // Admitted by the broker's word before the voucher was there: nothing is made for it.
    let mut sim = connected_donor();
    sim.policy.denied_institutions = BTreeSet::from(["startup".to_owned()]);
    sim.require_vouchers = true;
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed)];
    assert_eq!(sim.settle(), ["admit-lease"]);
    vouched(&mut sim, "startup");
    assert_eq!(sim.refusals(), [(LEASE, "local-policy")]);
    vouched(&mut sim, "poly");
    assert_eq!(sim.names(), ["prepare-lease"]);
    // The epoch's own keys need the voucher, too.
    sim.carry_out(&sim.plan()[0].clone());
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "not-vouched")], false));
    sim.change_peering(1, |record| record.remote.as_mut().unwrap().institution = Some("poly".to_owned()));
    assert_eq!(sim.names(), ["seal-credential"]);
}

#[test]
fn broker_zero_devices_huge_resource_count() {
    let mut sim = connected_donor();
    sim.policy.max_lent_gpus = Some(2);
    for count in [0, 2, 64, u64::MAX] {
        let mut huge = lease("lease-1", 7, LeaseState::Placed);
        let placement = huge.placement.as_mut().unwrap();
        placement.resource_count = count;
        sim.desired.leases = vec![huge.clone()];
        assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "placement-disagrees")], false), "{count}");
        huge.placement.as_mut().unwrap().nodes[0].devices.clear();
        sim.desired.leases = vec![huge.clone()];
        assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "placement-disagrees")], false), "{count}");
        huge.placement.as_mut().unwrap().nodes.clear();
        sim.desired.leases = vec![huge];
        assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "placement-disagrees")], false), "{count}");
    }
    // A lease that was admitted does not grow either.
    let mut sim = running(Side::Donor);
    sim.desired.leases[0].placement.as_mut().unwrap().resource_count = 64;
    sim.now_ms += 500_000;
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "placement-disagrees")], false));
}

#[test]
fn broker_placement_exceeds_local_reserve() {
    let mut sim = connected_donor();
    sim.reserve = LocalReserve { gpus_per_node: 1, ..LocalReserve::default() };
    let mut both = lease("lease-1", 7, LeaseState::Active);
    let placement = both.placement.as_mut().unwrap();
    let mut second = placement.nodes[0].devices[0].clone();
    second.device = 1;
    placement.nodes[0].devices.push(second.clone());
    placement.resource_count = 2;
    sim.desired.leases = vec![both.clone()];
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "placement-disagrees")], false));
    sim.reserve = LocalReserve::default();
    assert!(admits(&sim, LEASE));
    // In two leases it is the same.
    sim.reserve = LocalReserve { gpus_per_node: 1, ..LocalReserve::default() };
    let mut later = lease("lease-2", 8, LeaseState::Placed);
    later.placement.as_mut().unwrap().nodes[0].devices = vec![second];
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed), later];
    assert!(admits(&sim, LEASE));
    assert_eq!(sim.refusals(), [(LeaseId(2), "placement-disagrees")]);
}

#[test]
fn broker_lends_one_gpu_twice() {
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Placed), lease("lease-2", 8, LeaseState::Placed)];
    assert!(admits(&sim, LEASE));
    assert_eq!(sim.refusals(), [(LeaseId(2), "placement-disagrees")]);
    // The broker tells another story about the first lease: the donor's own record counts.
    let mut sim = running(Side::Donor);
    sim.desired.leases.push(lease("lease-2", 8, LeaseState::Placed));
    sim.desired.leases[0].placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
    assert!(sim.refusals().contains(&(LeaseId(2), "placement-disagrees")), "{:?}", sim.refusals());
    // A lease that nobody wants any more is taken down first; then the next one is admitted.
    let mut sim = running(Side::Donor);
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    sim.desired.leases.push(lease("lease-2", 8, LeaseState::Placed));
    assert_eq!(sim.settle(), ["remove-lease", "admit-lease", "prepare-lease", "seal-credential"]);
}

#[test]
fn broker_fencing_token_max_wedges_donor() {
    for state in [LeaseState::Placed, LeaseState::Active, LeaseState::Ending] {
        for token in [u64::MAX, u64::MAX / 2, (1 << 26) + 8] {
            let mut sim = running(Side::Donor);
            let mut wedge = lease("lease-2", token, state);
            wedge.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
            sim.desired.leases.push(wedge);
            if state != LeaseState::Ending {
                assert_eq!((sim.refusals(), sim.serves()), (vec![(LeaseId(2), "token-too-high")], false));
                assert_eq!(sim.settle(), ["refuse-lease"], "it is reported once");
                // An honest broker then ends it.
                sim.records.outbox.clear();
                sim.desired.leases[1].state = Some(LeaseState::Ending);
            }
            assert_eq!((sim.settle(), sim.serves()), (vec!["remove-lease"], false), "and learns that nothing is left");
            assert_eq!(sim.records.fence, 7, "the fence stays");
            // The next honest lease is served.
            let mut next = lease("lease-3", 8, LeaseState::Placed);
            next.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
            sim.desired.leases[1] = next;
            assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
        }
    }
    // A running lease cannot carry the token either.
    let mut sim = running(Side::Donor);
    sim.desired.leases[0].fencing_token = u64::MAX;
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "token-too-high")], false));
    // After a recovery from a backup an honest group skips 2^20 tokens.
    let mut sim = running(Side::Donor);
    let mut next = lease("lease-3", 7 + (1 << 20) * 10, LeaseState::Placed);
    next.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
    sim.desired.leases.push(next);
    assert!(admits(&sim, LeaseId(3)));
}

#[test]
fn broker_restores_old_snapshot_revives_lease() {
    let mut sim = running(Side::Donor);
    sim.desired.leases[0].state = Some(LeaseState::Ending);
    assert_eq!(sim.settle(), ["remove-lease"]);
    // Before and after the broker knew that it ended, with the same and with a later token.
    for (acked, token) in [(false, 7), (true, 7), (true, 8)] {
        sim.records.outbox.clear();
        let ended = DonorRecord { clean_acked: acked, ..DonorRecord::clone(&sim.records.donors[&LEASE]) };
        sim.records.donors.insert(LEASE, Arc::new(ended));
        for state in [LeaseState::Placed, LeaseState::Active] {
            sim.desired.leases[0].state = Some(state);
            sim.desired.leases[0].fencing_token = token;
            assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "lease-ended")], false), "{state:?}");
        }
    }
    // And once the record is gone: the fence has passed its token.
    sim.desired.leases[0].fencing_token = 7;
    sim.records.donors.clear();
    assert_eq!((sim.records.fence, sim.refusals(), sim.serves()), (7, vec![(LEASE, "token-too-low")], false));
    // The same with a lease that was never admitted.
    let mut sim = connected_donor();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Ending)];
    assert_eq!(sim.settle(), ["remove-lease"]);
    sim.records.outbox.clear();
    sim.desired.leases[0].state = Some(LeaseState::Active);
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "lease-ended")], false));
}

#[test]
fn a_renamed_side_of_a_peering_carries_no_lease() {
    let mut sim = running(Side::Donor);
    sim.desired.peerings[0].peering.origin = cluster("evil");
    sim.now_ms += 500_000;
    assert_eq!((sim.refusals(), sim.serves()), (vec![(LEASE, "peering-mismatch")], false));
}
