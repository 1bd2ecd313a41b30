//! Connects the pods of two clusters by Liqo's own network: complete agents exchange sealed messages through the
//! brokers, beside Liqo's real controllers. Both clusters use the same pod addresses.

use std::path::Path;

use comity_agent::services::local_api::fetch_status;
use comity_scenarios::burst::copy_policy;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, apply_admission, until};
use comity_testkit::{
    Binaries, ControlPlane, ControlPlaneConfig, LiqoControllers, LiqoControllersConfig, LiqoVersion, Needs,
    SimulatedNode,
};

use crate::OrLogs as _;

const POD_CIDR: &str = "10.200.0.0/16";
const ORIGIN: &str = "polytech-campus";
const DONOR: &str = "ncc-main";
/// Nobody routes pods here, and both API servers are on this host.
const LIQO: &str = "liqo:
  enabled: true
  network: liqo
  requireTun: false
  gateway: {serviceType: ClusterIP}
  peerNetworks: [10.200.0.0/16]
  peerApiServers: {ncc-main: [127.0.0.0/8]}
";

async fn cluster(dir: &Path, name: &str, nodes: Vec<SimulatedNode>) -> (ControlPlane, LiqoControllers) {
    let version = LiqoVersion::from_environment().unwrap();
    let binaries = Binaries::with_liqo(Needs::Liqo, version).await.unwrap();
    let mut config = ControlPlaneConfig::new(name, dir.join(name));
    config.nodes = nodes;
    let plane = ControlPlane::start(&binaries, config).await.unwrap();
    let liqo = LiqoControllersConfig { version, cluster_id: name.to_owned(), pod_cidr: POD_CIDR.to_owned() };
    let controllers = LiqoControllers::start(&binaries, &plane, &liqo).await.unwrap();
    for namespace in ["comity-system", "lab"] {
        plane.kubectl(&["create", "namespace", namespace]).await.unwrap();
    }
    let of_tenant = ["label", "namespace", "lab", "comity.dev/tenant=poly-ml", "comity.dev/offload=true"];
    plane.kubectl(&of_tenant).await.unwrap();
    let policies = include_str!("../../../../deploy/agent/liqo-policies.yaml");
    plane.kubectl_with_input(&["apply", "-f", "-"], policies).await.unwrap();
    apply_admission(&plane).await.unwrap();
    (plane, controllers)
}

/// A field of an object that is named after the other cluster.
async fn field(plane: &ControlPlane, other: &str, object: &str, path: &str) -> String {
    let (namespace, path) = (format!("liqo-tenant-{other}"), format!("jsonpath={{{path}}}"));
    plane.kubectl(&["-n", &namespace, "get", object, "-o", &path]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_networks_of_two_liqos_are_connected_by_sealed_messages_and_parted_with_the_peering() {
    let (clusters, policy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ((origin, origins_liqo), (donor, donors_liqo)) = tokio::join!(
        cluster(clusters.path(), "origin", vec![SimulatedNode::without_gpus("campus-1")]),
        cluster(clusters.path(), "donor", vec![SimulatedNode::h100("ncc-1", 8), SimulatedNode::h100("ncc-2", 8)]),
    );
    copy_policy(&FederationConfig::with_example_policy().policy, policy.path(), "2s").unwrap();
    let config =
        FederationConfig { brokers: 1, policy: policy.path().to_owned(), ..FederationConfig::with_example_policy() };
    let mut federation = Federation::start(config).await.unwrap();
    for (cluster, plane) in [(ORIGIN, &origin), (DONOR, &donor)] {
        let inventory = InventorySource::Kubernetes(plane.admin_kubeconfig_path());
        let spec = AgentSpec { more: LIQO.to_owned(), ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    until("the donor to lend virtual nodes", PATIENCE, async || {
        let offers = federation.comity_as("admin", &["offers"]).await?.to_string();
        anyhow::ensure!(offers.contains("virtual-node"), "{offers}");
        Ok(Some(()))
    })
    .await
    .or_logs(&federation);

    let submit = "request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 1 \
                  --cpu-per-gpu 1 --memory-per-gpu 1Gi --duration 1h --delivery virtual-node --namespace lab";
    let submit: Vec<&str> = submit.split(' ').collect();
    let request = federation.comity(&submit).await.or_logs(&federation);
    let lease = federation.lease_of(request["id"].as_str().unwrap()).await.or_logs(&federation);
    for cluster in [ORIGIN, DONOR] {
        let socket = federation.agent_dir(cluster).join("agent.sock");
        until("the network to be set up", PATIENCE, async || {
            let networks = fetch_status(&socket).await?.networks;
            let stands = networks.values().any(|told| told.starts_with("set up"));
            anyhow::ensure!(stands, "{cluster}: {networks:?}");
            Ok(Some(()))
        })
        .await
        .or_logs(&federation);
    }
    for (plane, other) in [(&origin, "donor"), (&donor, "origin")] {
        let remapped = field(plane, other, &format!("configuration/{other}"), ".status.remote.cidr.pod[0]").await;
        assert!(!remapped.is_empty() && remapped != POD_CIDR, "{remapped}");
    }
    // Each cluster has the key that the other's Liqo made, and the origin connects to the donor's gateway.
    for (here, there, side) in [(&origin, &donor, "donor"), (&donor, &origin, "origin")] {
        let other = if side == "donor" { "origin" } else { "donor" };
        let known = field(here, side, &format!("publickey/{side}"), ".spec.publicKey").await;
        let made = field(there, other, &format!("secret/gw-{other}"), ".data.publicKey").await;
        assert!(!known.is_empty() && known == made, "{side}: {known} and {made}");
    }
    let called = field(&origin, "donor", "gatewayclient/donor", ".spec.endpoint.addresses[0]").await;
    assert_eq!(called, field(&donor, "origin", "service/gw-origin", ".spec.clusterIP").await);

    // The last lease ends the peering, which removes all objects.
    federation.comity(&["lease", "release", "--yes", &lease]).await.or_logs(&federation);
    federation.lease_in(&lease, "ended", PATIENCE).await.or_logs(&federation);
    federation.no_peering(PATIENCE).await.or_logs(&federation);
    for plane in [&origin, &donor] {
        let namespaces = plane.kubectl(&["get", "namespaces", "-o", "name"]).await.unwrap();
        assert!(!namespaces.contains("liqo-tenant"), "{namespaces}");
        let left = plane.kubectl(&["get", "foreignclusters", "-o", "name"]).await.unwrap();
        assert_eq!(left, "", "{}", plane.name());
    }
    drop((federation, origins_liqo, donors_liqo));
    origin.stop().await.unwrap();
    donor.stop().await.unwrap();
}
