//! Attacks whose effect is on a real API server: a Secret of the origin, a namespace of the donor.

use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};

use super::{Attacked, refusal};
use crate::hostile::hostile_federation::{DONOR_CLUSTER, ORIGIN_CLUSTER, Setup, Trust};
use crate::{apply_admission, until};

/// Tenant of the leases of [`Books`](crate::hostile::books::Books), and a namespace of it.
const LEASE_TENANT: &str = "poly-ml";
const OWN: &str = "team-a";
/// A namespace of another tenant.
const FOREIGN: &str = "team-b";

async fn plane(dir: &std::path::Path, name: &str, nodes: Vec<SimulatedNode>) -> ControlPlane {
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let config = ControlPlaneConfig { nodes, ..ControlPlaneConfig::new(name, dir.join(name)) };
    let plane = ControlPlane::start(&binaries, config).await.unwrap();
    apply_admission(&plane).await.unwrap();
    plane
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_invents_lease_for_foreign_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, donor) = tokio::join!(
        plane(dir.path(), "origin", vec![SimulatedNode::without_gpus("campus-1")]),
        plane(dir.path(), "donor", vec![SimulatedNode::h100("centre-1", 4), SimulatedNode::h100("centre-2", 4)]),
    );
    for (namespace, tenant) in [(OWN, LEASE_TENANT), (FOREIGN, "another")] {
        origin.kubectl(&["create", "namespace", namespace]).await.unwrap();
        origin.kubectl(&["label", "namespace", namespace, &format!("comity.dev/tenant={tenant}")]).await.unwrap();
    }
    let kubeconfigs =
        [(ORIGIN_CLUSTER, origin.admin_kubeconfig_path()), (DONOR_CLUSTER, donor.admin_kubeconfig_path())];
    let setup = Setup { kubeconfigs: kubeconfigs.into(), ..Setup::new(Trust::Pinned) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
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
    let namespaces = donor.kubectl(&["get", "namespaces", "-o", "name"]).await.unwrap();
    assert!(!namespaces.contains(&format!("comity-{counted}")), "{namespaces}");
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
    tokio::try_join!(origin.stop(), donor.stop()).unwrap();
}
