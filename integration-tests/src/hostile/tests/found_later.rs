//! Attacks that were found after the first ones: on roots, on what agents remember, and ones that never end.

use std::time::Duration;

use super::{Attacked, SOON, refusal};
use crate::hostile::AttackKind;
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::hostile_federation::{Setup, Trust};
use crate::until;

/// Certificates that are renewed during a test.
fn renewing() -> Setup {
    Setup { certificate_validity: Duration::from_secs(12), ..Setup::new(Trust::Pinned) }
}

/// Carries out an attack of a kind. What it gained would be on the API, on the disks, or in the next honest lease.
async fn gains_nothing(setup: Setup, kind: AttackKind) {
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    kind.attack(&mut round).await;
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_plants_a_root_by_renewal() {
    gains_nothing(renewing(), AttackKind::PlantRoot).await;
}

/// Both agents have taken the next root by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_takes_the_next_root_away() {
    gains_nothing(renewing(), AttackKind::TakeNextRootAway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_invents_clusters_without_end() {
    let setup = Setup { remembered: super::super::REMEMBERED, ..Setup::new(Trust::FirstUse) };
    gains_nothing(setup, AttackKind::InventClusters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_names_epochs_without_end() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    attacked.round().await.name_epochs().await;
    // Before the last one is established: then the agents drop the others in any case.
    let stores = attacked.federation.stop().await.unwrap();
    attacked.ledger.search_disks(&attacked.federation, &stores).unwrap();
    assert!(attacked.ledger.violations().is_empty(), "{:#?}", attacked.ledger.violations());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_grants_an_endless_outage_grace() {
    gains_nothing(Setup::new(Trust::Pinned), AttackKind::EndlessOutageGrace).await;
}

/// Each agent keeps what it saw before, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_rewrites_audit_history() {
    gains_nothing(Setup::new(Trust::Pinned), AttackKind::RewriteAuditHistory).await;
}

/// The donor lends for a few seconds at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_prolongs_a_lease_and_goes_silent() {
    gains_nothing(Setup { max_lease_seconds: 10, ..Setup::new(Trust::Pinned) }, AttackKind::ProlongAndGoSilent).await;
}

/// It takes a minute until an honest revision counts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_sends_the_highest_revision() {
    gains_nothing(Setup::new(Trust::Pinned), AttackKind::HighestRevision).await;
}

/// The donor ends the lease. Its quota never has more than what was admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_says_that_a_lease_has_other_devices() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    // The ledger knows what was admitted.
    round.ledger.check(round.federation).await.unwrap();
    round.repoint_devices();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "placement-disagrees");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_ends_leases_that_do_not_exist_yet() {
    gains_nothing(Setup::new(Trust::Pinned), AttackKind::EarlyFencingTokens).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_lends_under_a_token_from_before() {
    gains_nothing(Setup::new(Trust::Pinned), AttackKind::LateFencingToken).await;
}

/// More peerings than an agent keeps. Both refuse the last ones, and an honest lease goes on over its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: part of ./test long"]
async fn broker_names_peerings_without_end() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    round.propose(1_100);
    let federation = round.federation;
    for cluster in [ORIGIN_CLUSTER, DONOR_CLUSTER] {
        let refuses = || {
            let refused = federation.broker.refused();
            refused.iter().any(|refused| refused.cluster == cluster && refused.code == "too-many-peerings")
        };
        let what = format!("{cluster} to refuse a peering");
        until(&what, SOON * 20, async || Ok(refuses().then_some(()))).await.unwrap();
    }
    assert!(federation.status(DONOR_CLUSTER).await.unwrap().lent.contains_key(&lease));
    let stores = attacked.federation.stop().await.unwrap();
    attacked.ledger.search_disks(&attacked.federation, &stores).unwrap();
    assert!(attacked.ledger.violations().is_empty(), "{:#?}", attacked.ledger.violations());
}
