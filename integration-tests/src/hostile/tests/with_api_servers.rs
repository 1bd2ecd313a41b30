//! Attacks whose effect is on a real API server: a Secret of the origin; a namespace, a quota or a token of the donor.
//! Each agent has the rights of its ServiceAccount and no others.

use std::collections::BTreeSet;

use super::{Attacked, refusal};
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::hostile_federation::{HostileFederation, Setup, Trust};
use crate::hostile::impostor::IMPOSTOR;
use crate::until;

/// Tenant of the leases of [`Books`](crate::hostile::books::Books), and a namespace of it.
const LEASE_TENANT: &str = "poly-ml";
const OWN: &str = "team-a";
/// A namespace of another tenant.
const FOREIGN: &str = "team-b";

fn on_api_servers(trust: Trust) -> Setup {
    Setup { kubernetes: true, ..Setup::new(trust) }
}

/// Leases of which the donor has a namespace.
async fn namespaces(federation: &HostileFederation) -> BTreeSet<String> {
    let args = ["get", "namespaces", "-l", "comity.dev/lease", "-o", "name"];
    let listed = federation.plane(DONOR_CLUSTER).unwrap().kubectl(&args).await.unwrap();
    listed.lines().filter_map(|name| name.strip_prefix("namespace/comity-")).map(str::to_owned).collect()
}

/// Leases for which the origin has a Secret.
async fn secrets(federation: &HostileFederation) -> BTreeSet<String> {
    federation.kubeconfigs().await.unwrap().into_keys().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_invents_lease_for_foreign_namespace() {
    let mut attacked = Attacked::start(on_api_servers(Trust::Pinned)).await;
    let origin = attacked.federation.plane(ORIGIN_CLUSTER).unwrap();
    for (namespace, tenant) in [(OWN, LEASE_TENANT), (FOREIGN, "another")] {
        origin.kubectl(&["create", "namespace", namespace]).await.unwrap();
        origin.kubectl(&["label", "namespace", namespace, &format!("comity.dev/tenant={tenant}")]).await.unwrap();
        // As deploy/agent/rbac.yaml says: what keeps the agent out of the other namespace is not a missing right.
        let role = ["create", "role", "secrets", "--verb=get,create,patch,delete", "--resource=secrets"];
        let account = "--serviceaccount=comity-system:comity-agent";
        for create in [&role[..], &["create", "rolebinding", "secrets", "--role=secrets", account]] {
            origin.kubectl(&[&["-n", namespace], create].concat()).await.unwrap();
        }
    }
    let mut round = attacked.round().await;
    let (origin, donor) =
        (round.federation.plane(ORIGIN_CLUSTER).unwrap(), round.federation.plane(DONOR_CLUSTER).unwrap());
    let peering = round.peering();
    let place = |gpus| move |books: &crate::hostile::books::Books| books.place(DONOR_CLUSTER, gpus);

    // In the tenant's own namespace a lease works, so that the refusals below are about what they name.
    let placement = round.federation.broker.read(place(1));
    let own = round.invent(&peering, placement, |lease| lease.target_namespace = OWN.to_owned());
    let is_active = async || Ok(round.federation.is_active(&own)?.then_some(()));
    until("the tenant's own lease to be active", crate::PATIENCE, is_active).await.unwrap();
    let secrets =
        async |namespace: &str| origin.kubectl(&["-n", namespace, "get", "secrets", "-o", "name"]).await.unwrap();
    assert_eq!(secrets(OWN).await.trim(), format!("secret/comity-{own}"));

    let placement = round.federation.broker.read(place(1));
    let foreign = round.invent(&peering, placement, |lease| lease.target_namespace = FOREIGN.to_owned());
    let code = refusal(round.federation, ORIGIN_CLUSTER, &foreign).await;
    assert_eq!(code, "foreign-target-namespace");
    assert_eq!(secrets(FOREIGN).await, "");

    // A count without devices makes no namespace, and thus no quota, on the donor.
    let counted = round.zero_devices(64);
    refusal(round.federation, DONOR_CLUSTER, &counted).await;
    assert!(!namespaces(round.federation).await.contains(&counted));
    let gpus = "jsonpath={.spec.hard.requests\\.nvidia\\.com/gpu}";
    let quota = donor.kubectl(&["-n", &format!("comity-{own}"), "get", "resourcequota", "gpus", "-o", gpus]).await;
    assert_eq!(quota.unwrap(), "1");

    let federation = round.federation;
    federation.broker.change(|books| {
        let held: Vec<String> = books.leases.keys().cloned().collect();
        held.iter().for_each(|lease| books.release(lease));
    });
    until("all leases to end", crate::PATIENCE, async || {
        Ok(federation.broker.read(|books| books.leases.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(secrets(OWN).await, "");
    attacked.federation.stop().await.unwrap();
}

/// The lease keeps its token and namespace, and the impostor gets neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_repoints_lease_to_other_peering() {
    let setup = Setup { allowed_origins: &[ORIGIN_CLUSTER, IMPOSTOR], ..on_api_servers(Trust::FirstUse) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    let peering = round.swap_peering().await;
    assert_eq!(refusal(round.federation, DONOR_CLUSTER, &lease).await, "lease-rebound");
    round.pause().await;
    let opened = round.federation.broker.opened();
    assert!(opened.iter().all(|envelope| envelope.step != "credential"), "{opened:#?}");
    round.federation.broker.impostor().close(&peering);
    attacked.nothing_was_gained().await;
}

/// The origin writes no Secret with the impostor's address and token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_swaps_donor_under_origin() {
    let mut attacked = Attacked::start(on_api_servers(Trust::FirstUse)).await;
    let mut round = attacked.round().await;
    let honest = round.lease.clone();
    let lease = round.swap_donor().await;
    refusal(round.federation, ORIGIN_CLUSTER, &lease).await;
    round.pause().await;
    assert_eq!(secrets(round.federation).await, BTreeSet::from([honest]));
    attacked.nothing_was_gained().await;
}

/// Neither the namespace nor the Secret of a lease that ended is made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_restores_old_snapshot_revives_lease() {
    let mut attacked = Attacked::start(on_api_servers(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    round.restore_old_snapshot().await;
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    round.pause().await;
    assert!(!namespaces(round.federation).await.contains(&lease));
    assert!(!secrets(round.federation).await.contains(&lease));
    attacked.nothing_was_gained().await;
}
