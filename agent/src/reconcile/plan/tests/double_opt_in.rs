//! A lease needs both clusters' own policies: the donor's on origins and the origin's on donors.

use comity_types::{DONOR_REFUSED, LOCAL_POLICY};

use super::*;
use crate::reconcile::steps::lease::{LeaseStep, RefuseLease};
use crate::reconcile::steps::peering::{FailPeering, PeeringStep};

fn set(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

/// Code and message of the only step, a refusal of a lease.
fn refusal(sim: &Sim) -> (&'static str, String) {
    match sim.plan().as_slice() {
        [Step::Lease(LeaseStep::RefuseLease(RefuseLease { code, message, .. }))] => (*code, message.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn broker_lends_from_a_donor_that_the_origin_does_not_accept() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    let default = BorrowingPolicy::default;
    for (borrowing, field, expected) in [
        (BorrowingPolicy { enabled: false, ..default() }, "borrowing.enabled", LOCAL_POLICY),
        (BorrowingPolicy { denied_donors: set("donor"), ..default() }, "borrowing.deniedDonors", DONOR_REFUSED),
        (BorrowingPolicy { allowed_institutions: set("uni"), ..default() }, "borrowing.allowedInst", DONOR_REFUSED),
    ] {
        sim.borrowing = borrowing;
        // What the broker says about this side's own report changes nothing.
        for origin_ready in [false, true] {
            sim.desired.leases[0].origin_ready = origin_ready;
            let (code, message) = refusal(&sim);
            assert!(code == expected && message.contains(field), "{code}: {message}");
        }
        sim.is_live = false;
        assert_eq!(sim.names(), [""; 0], "an old directive opens nothing, and is refused when the broker is back");
        sim.is_live = true;
    }
    sim.desired.leases[0].origin_ready = false;
    sim.borrowing = BorrowingPolicy { allowed_donors: set("donor"), ..BorrowingPolicy::default() };
    assert_eq!(sim.settle(), ["open-credential", "accept-credential", "probe"]);
    sim.borrowing = BorrowingPolicy { enabled: false, ..BorrowingPolicy::default() };
    sim.restart();
    assert!(sim.settle().contains(&"accept-credential"), "a lease that was accepted stays");
}

#[test]
fn a_lease_is_accepted_for_its_tenant_and_for_its_namespace_from_its_donors() {
    let mut sim = connected_origin();
    sim.desired.leases = vec![lease("lease-1", 7, LeaseState::Connecting)];
    sim.desired.leases[0].tenant = "vision".into();
    sim.borrowing.allowed_tenants = set("speech");
    assert!(refusal(&sim).1.contains("borrowing.allowedTenants"));
    sim.borrowing.allowed_tenants = set("vision");
    sim.desired.leases[0].target_namespace = "team-a".into();
    sim.borrowing.namespace_donors.insert("team-a".into(), set("other"));
    assert!(refusal(&sim).1.contains("borrowing.namespaceDonors"));
    // Without a namespace it is the default one's.
    sim.desired.leases[0].target_namespace.clear();
    assert_eq!(sim.names(), [""; 0]);
    sim.borrowing.namespace_donors.insert("comity-leases".into(), set("other"));
    assert!(refusal(&sim).1.contains("comity-leases"));
}

#[test]
fn neither_side_builds_a_tunnel_to_a_cluster_that_it_does_not_accept() {
    for side in [Side::Donor, Side::Origin] {
        let mut sim = Sim::new(side).peering(PeeringState::Keys, 1, Bundles::Unknown);
        sim.policy.denied_origins = set("origin");
        sim.borrowing.denied_donors = set("donor");
        let refused = match sim.plan().as_slice() {
            [Step::Peering(PeeringStep::FailPeering(FailPeering { code, message, .. }))] => (*code, message.clone()),
            other => panic!("{side:?}: {other:?}"),
        };
        let (code, field) = match side {
            Side::Donor => (LOCAL_POLICY, "sharing.deniedOrigins"),
            Side::Origin => (DONOR_REFUSED, "borrowing.deniedDonors"),
        };
        assert!(refused.0 == code && refused.1.contains(field), "{refused:?}");
        (sim.policy, sim.borrowing) = (LocalPolicy::default(), BorrowingPolicy::default());
        assert_eq!(sim.names(), ["make-keys"], "{side:?}");
    }
}
