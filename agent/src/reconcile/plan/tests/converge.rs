//! Planning ends: useless objects are removed, and nothing is planned forever.

use proptest::prelude::*;

use super::*;

#[test]
fn envelopes_of_no_use_are_acknowledged_once() {
    let mut sim = connected_origin();
    let mut old = envelope("credential", "lease-1");
    old.key.epoch = 7;
    sim.desired.envelopes = vec![old, envelope("unheard-of", "")];
    let done = sim.settle();
    assert!(done.iter().all(|name| *name == "discard-envelope") && done.len() == 2, "{done:?}");
}

#[test]
fn envelopes_of_skipped_objects_are_kept() {
    for skipped in [ObjectId::Lease(LeaseId(1)), ObjectId::Peering(PEERING)] {
        let mut sim = connected_origin();
        sim.desired.leases.clear();
        let mut old = envelope("credential", "lease-1");
        old.key.epoch = 7;
        sim.desired.envelopes = vec![old];
        assert!(sim.plan().iter().any(|step| step.name() == "discard-envelope"));
        sim.desired.skipped = vec![skipped];
        assert!(!sim.plan().iter().any(|step| step.name() == "discard-envelope"), "{skipped:?}");
    }
}

proptest! {
    /// From any point of a handshake and a lease, with a restart anywhere, the plan ends, and is empty when it has.
    #[test]
    fn every_plan_converges(
        donor in any::<bool>(),
        peering in 1_i32..=8,
        lease_state in 1_i32..=6,
        bundles in prop_oneof![Just(Bundles::Unknown), Just(Bundles::Known)],
        has_record in any::<bool>(),
        complete in any::<bool>(),
        envelopes in prop::collection::vec(0_usize..3, 0..3),
        restart_after in 0_usize..6,
        is_live in any::<bool>(),
        enabled in any::<bool>(),
    ) {
        let side = if donor { Side::Donor } else { Side::Origin };
        let mut sim = Sim::new(side).peering(v1::PeeringState::try_from(peering).unwrap().try_into().unwrap(), 1, bundles);
        sim.policy.enabled = enabled;
        sim.is_live = is_live;
        let state = v1::LeaseState::try_from(lease_state).unwrap().try_into().unwrap();
        sim.desired.leases = vec![lease("lease-1", 5, state)];
        let kinds = [("psk", ""), ("proof", ""), ("credential", "lease-1")];
        sim.desired.envelopes = envelopes.iter().map(|kind| envelope(kinds[*kind].0, kinds[*kind].1)).collect();
        if has_record {
            sim.change_peering(1, |record| {
                if complete {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                }
            });
        }
        for _ in 0..restart_after {
            for step in sim.plan().into_iter().take(1) {
                sim.carry_out(&step);
            }
        }
        sim.restart();
        sim.settle();
        prop_assert!(sim.plan().is_empty());
        // One object, one step at a time.
        let steps = sim.plan();
        let objects: BTreeSet<_> = steps.iter().map(Step::object).collect();
        prop_assert_eq!(objects.len(), steps.len());
    }
}
