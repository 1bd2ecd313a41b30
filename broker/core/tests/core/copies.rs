//! Copies of the state share unchanged values and do not follow later changes.

use std::sync::Arc;

use comity_core::command::MarkClusters;
use comity_core::demand::Share;
use comity_core::{Command, snapshot};
use comity_types::LeaseId;

use super::federation::{Federation, cluster, spec};

/// Six leases of one GPU, and a request that waits.
fn lent() -> (Federation, Vec<LeaseId>) {
    let mut federation = Federation::ready();
    for _ in 0..6 {
        federation.submit(spec(1, Share::Whole, "big"));
    }
    let leases = federation.place();
    federation.submit(spec(1, Share::Whole, "small"));
    (federation, leases)
}

#[test]
fn a_copy_for_a_snapshot_shares_every_value() {
    let (federation, leases) = lent();
    let state = &federation.state;
    let copy = snapshot::copy(state);
    assert!(leases.len() == 6 && leases.iter().all(|id| std::ptr::eq(&state.leases[id], &copy.leases[id])));
    assert!(state.requests.keys().all(|id| std::ptr::eq(&state.requests[id], &copy.requests[id])));
    assert!(state.peerings.keys().all(|id| std::ptr::eq(&state.peerings[id], &copy.peerings[id])));
    assert!(state.envelopes.keys().all(|key| std::ptr::eq(&state.envelopes[key], &copy.envelopes[key])));
    assert!(state.idempotency.keys().all(|key| std::ptr::eq(&state.idempotency[key], &copy.idempotency[key])));
    assert!(state.clusters.keys().all(|id| std::ptr::eq(&state.clusters[id], &copy.clusters[id])));
    assert_eq!(snapshot::encode(state).unwrap(), snapshot::encode(&copy).unwrap());
}

#[test]
fn a_copy_stays_as_it_was_and_a_change_copies_no_offer() {
    let (mut federation, leases) = lent();
    let copy = snapshot::copy(&federation.state);
    let bytes = snapshot::encode(&copy).unwrap();
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: vec![cluster("north")] }));
    federation.submit(spec(1, Share::Whole, "small"));

    assert_eq!(snapshot::encode(&copy).unwrap(), bytes);
    assert_ne!(snapshot::encode(&federation.state).unwrap(), bytes);
    let offer = |state: &comity_core::State| state.clusters[&cluster("north")].offer.clone().unwrap();
    assert!(!federation.state.clusters[&cluster("north")].connected && copy.clusters[&cluster("north")].connected);
    assert!(Arc::ptr_eq(&offer(&federation.state), &offer(&copy)));
    assert!(leases.iter().all(|id| std::ptr::eq(&federation.state.leases[id], &copy.leases[id])));
}
