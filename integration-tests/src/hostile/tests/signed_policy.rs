//! A broker that lends by another policy than the one that its owners signed.

use super::*;

/// A donor that pins the policy's first commit, with an active lease by the second.
async fn signed() -> Attacked {
    Attacked::start(Setup { signed_policy: true, ..Setup::new(Trust::Pinned) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_lends_by_a_forged_policy() {
    let mut attacked = signed().await;
    let mut round = attacked.round().await;
    let lease = round.forge_policy();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "signed-policy");
    let status = round.federation.status(DONOR_CLUSTER).await.unwrap();
    let reason = status.refused_policy.unwrap();
    assert!(reason.contains("without the signature of institution"), "{reason}");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_hides_the_policy_in_force() {
    let mut attacked = signed().await;
    let mut round = attacked.round().await;
    let lease = round.hide_policy();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "policy-unverified");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_goes_back_to_an_older_policy() {
    let mut attacked = signed().await;
    let mut round = attacked.round().await;
    let lease = round.roll_back_policy();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "signed-policy");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_says_that_nobody_signs_the_policy() {
    let mut attacked = signed().await;
    let mut round = attacked.round().await;
    let lease = round.deny_signatures();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "policy-unverified");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_lends_for_data_that_its_owner_keeps() {
    let mut attacked = signed().await;
    let mut round = attacked.round().await;
    let lease = round.send_kept_data();
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "signed-policy");
    attacked.nothing_was_gained().await;
}
