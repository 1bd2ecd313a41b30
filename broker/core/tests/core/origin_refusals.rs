//! Donors that the origin's own policy refuses, and handshakes that a side refuses.

use comity_core::Command;
use comity_core::command::{Expire, LeaseOutcome, OfferKeys, PeeringOutcome};
use comity_core::demand::{RequestSpec, Share};
use comity_core::limits::REFUSAL_KEPT_MS;
use comity_types::{ClusterId, EndReason, LeaseState, PeeringState, RequestState, Side, TenantId};

use super::federation::{Federation, cluster, spec};
use super::handshake::keys;

fn refused_by_origin(code: &str) -> LeaseOutcome {
    LeaseOutcome::Failed { code: code.into(), message: "borrowing.deniedDonors".into(), highest_fencing_token: 0 }
}

#[test]
fn a_request_is_placed_without_the_donors_that_its_origin_refuses_until_none_remains() {
    let (mut federation, request, lease, _) = Federation::placed();
    federation.report_lease("west", lease, refused_by_origin("donor-refused"));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::OriginRefused));
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    assert_eq!(federation.state.requests[&request].attempts, 0, "a refusal is not a failed attempt");
    let second = federation.place()[0];
    assert_eq!(federation.state.leases[&second].placement.donor, cluster("south"));
    federation.report_lease("west", second, refused_by_origin("donor-refused"));
    let found = &federation.state.requests[&request];
    assert_eq!(found.state, RequestState::Failed);
    assert!(found.message.ends_with("(donor-refused), and no other donor may serve it"), "{}", found.message);
}

#[test]
fn a_donor_that_the_origin_refused_is_not_asked_again_though_no_other_has_room() {
    let mut federation = Federation::ready();
    let request = federation.submit(spec(8, Share::Whole, "big"));
    let lease = federation.place()[0];
    federation.report_lease("west", lease, refused_by_origin("donor-refused"));
    assert!(federation.place().is_empty(), "south has four devices");
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued, "south may offer more");
}

#[test]
fn an_origin_that_borrows_from_nobody_fails_the_request() {
    let (mut federation, request, lease, _) = Federation::placed();
    federation.report_lease("west", lease, refused_by_origin("local-policy"));
    assert_eq!(federation.state.requests[&request].state, RequestState::Failed);
}

#[test]
fn leases_do_not_wait_for_a_peering_that_a_side_refuses() {
    for (side, code, reason, state) in [
        ("west", "donor-refused", EndReason::OriginRefused, RequestState::Queued),
        ("west", "local-policy", EndReason::OriginFailed, RequestState::Failed),
        ("north", "local-policy", EndReason::DonorFailed, RequestState::Queued),
    ] {
        let (mut federation, request, lease, peering) = Federation::placed();
        let failed = |code: &str| PeeringOutcome::Failed { code: code.into(), message: "no".into() };
        federation.report_peering(side, peering, 1, failed("keys-lost"));
        assert!(federation.state.leases[&lease].state.is_held(), "the next epoch may succeed");
        federation.report_peering(side, peering, 1, failed(code));
        assert_eq!(federation.state.leases[&lease].end_reason, Some(reason), "{side} {code}");
        assert_eq!(federation.state.requests[&request].state, state, "{side} {code}");
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Failed);
    }
}

#[test]
fn a_lease_says_why_its_handshake_failed_until_one_succeeds() {
    let (mut federation, _, lease, peering) = Federation::placed();
    let failed = PeeringOutcome::Failed { code: "voucher-missing".into(), message: "west shows no voucher".into() };
    federation.report_peering("north", peering, 1, failed);
    let says_why = |federation: &Federation| {
        let message = &federation.state.leases[&lease].message;
        assert!(message.ends_with("tried again: north: west shows no voucher (voucher-missing)"), "{message}");
    };
    says_why(&federation);
    // Another lease that needs the peering says so from its beginning.
    federation.submit(RequestSpec { allow_donors: vec![cluster("north")], ..spec(1, Share::Whole, "big") });
    let other = federation.place()[0];
    assert_eq!(federation.state.leases[&other].peering, peering);
    assert_eq!(federation.state.leases[&other].message, federation.state.leases[&lease].message);

    federation.now += 1_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Proposed);
    federation.ok(Command::OfferKeys(OfferKeys { bundle: keys(peering, 2, "west", Side::Origin) }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Connecting);
    says_why(&federation);
    federation.shake_hands(peering, 2);
    assert_eq!(federation.state.leases[&lease].message, "the clusters are connected; the donor prepares");
}

/// Whether a new request of an origin is to try others before this donor.
fn is_avoided(federation: &mut Federation, tenant: &str, origin: &str, donor: &ClusterId) -> bool {
    let mut wanted = spec(1, Share::Whole, "big");
    (wanted.tenant, wanted.origin) = (TenantId::parse(tenant, "tenant").unwrap(), cluster(origin));
    let request = federation.submit(wanted);
    federation.state.requests[&request].failed_donors.contains(donor)
}

#[test]
fn new_requests_try_others_before_a_donor_that_their_origin_refused_lately() {
    let mut federation = Federation::with_rivals();
    let first = federation.submit(spec(1, Share::Whole, "big"));
    let lease = federation.place()[0];
    let refused = federation.state.leases[&lease].placement.donor.clone();
    assert!(!is_avoided(&mut federation, "team", "west", &refused));
    federation.report_lease("west", lease, refused_by_origin("donor-refused"));
    assert!(is_avoided(&mut federation, "team", "west", &refused));
    assert!(!is_avoided(&mut federation, "rivals", "east", &refused), "another origin did not refuse it");
    let second = federation.submit(spec(1, Share::Whole, "big"));
    federation.place();
    for request in [first, second] {
        let lease = federation.state.requests[&request].lease.unwrap();
        assert_ne!(federation.state.leases[&lease].placement.donor, refused, "{request}");
    }

    federation.now += REFUSAL_KEPT_MS;
    assert!(!is_avoided(&mut federation, "team", "west", &refused), "the origin may have changed its policy");
}

#[test]
fn the_refusal_of_a_peering_is_remembered_until_a_lease_over_it_is_active() {
    let (mut federation, _, _, peering) = Federation::placed();
    let north = cluster("north");
    let failed = PeeringOutcome::Failed { code: "donor-refused".into(), message: "no".into() };
    federation.report_peering("west", peering, 1, failed);
    assert!(is_avoided(&mut federation, "team", "west", &north));

    let (mut federation, _, lease, _) = Federation::placed();
    federation.report_lease("west", lease, refused_by_origin("donor-refused"));
    let mut wanted = spec(1, Share::Whole, "big");
    wanted.allow_donors = vec![north.clone()];
    let request = federation.submit(wanted);
    federation.place();
    let lease = federation.state.requests[&request].lease.unwrap();
    let peering = federation.state.leases[&lease].peering;
    federation.shake_hands(peering, 1);
    assert!(is_avoided(&mut federation, "team", "west", &north));
    federation.activate(lease);
    assert!(!is_avoided(&mut federation, "team", "west", &north));
}
