//! What ends when another agent takes a member's place.

use comity_core::Command;
use comity_core::command::{LeaseOutcome, MarkClusters, PeeringOutcome};
use comity_core::demand::Share;
use comity_types::{EndReason, LeaseState, LeaseTreatment, PeeringState, RequestState};

use super::federation::{Federation, cluster, spec};
use super::revocations::{evict, lent, replace};

fn replaced(federation: &mut Federation, name: &str, identity: &str) {
    replace(name, "again", identity).into_iter().for_each(|command| drop(federation.ok(command)));
}

#[test]
fn leases_of_a_stolen_agent_outlive_its_replacement() {
    for (name, partner, reason, becomes) in [
        ("west", "north", EndReason::OriginRevoked, RequestState::Cancelled),
        ("north", "west", EndReason::DonorRevoked, RequestState::Queued),
    ] {
        let (mut federation, request, lease, peering) = lent();
        let waiting = federation.submit(spec(64, Share::Whole, "big"));
        replaced(&mut federation, name, "ed25519:new");
        let held = &federation.state.leases[&lease];
        assert_eq!((held.state, held.end_reason), (LeaseState::Ending, Some(reason)));
        assert!(held.message.contains("with another identity key"), "{}", held.message);
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Draining, "the tunnel goes at once");
        assert_eq!(federation.state.requests[&request].state, becomes);
        assert_eq!(federation.state.requests[&waiting].state, RequestState::Queued, "it is the tenant's");
        // The new agent removes what the old one left.
        for reporter in [partner, name] {
            assert_ne!(federation.state.leases[&lease].state, LeaseState::Ended);
            federation.report_lease(reporter, lease, LeaseOutcome::Clean);
            federation.report_peering(reporter, peering, 1, PeeringOutcome::Closed);
        }
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
        federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster(name)], silent: Vec::new() }));
        federation.submit(spec(1, Share::Whole, "big"));
        let next = federation.place()[0];
        assert_ne!(federation.state.leases[&next].peering, peering);
    }
}

#[test]
fn a_lease_that_finishes_ends_when_its_evicted_cluster_joins_with_another_key() {
    let (mut federation, _, lease, peering) = lent();
    federation.ok(evict("west", LeaseTreatment::Finish));
    replaced(&mut federation, "west", "ed25519:new");
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::OriginRevoked));
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Draining);
}

#[test]
fn an_agent_that_joins_again_keeps_its_leases() {
    let (mut federation, _, lease, peering) = lent();
    replaced(&mut federation, "west", "ed25519:west");
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Failed, "it is tried again");
}
