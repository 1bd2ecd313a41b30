//! Two clusters with real kubelets: the tenant's container really runs on the donor.

use std::time::{Duration, Instant};

use comity_scenarios::burst::place;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{Binaries, KubectlError, Needs, RealClusters, RealClustersConfig, Where, requirements};

use crate::OrLogs as _;
use crate::control_planes::pod;
use crate::gpu_boxes;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_container_runs_on_the_donor_and_outlives_the_brokers() {
    if !requirements::met("a tenant's container runs on the donor", &RealClusters::missing()) {
        return;
    }
    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let config = RealClustersConfig { origin_gpus: 0, donor_gpus: 4, ..RealClustersConfig::default() };
    let clusters = std::sync::Arc::new(RealClusters::start(&binaries, config).await.unwrap());
    let router = clusters.router_address(Where::Origin);
    let mut federation = Federation::start(FederationConfig {
        brokers: 3,
        place: place(&clusters, Where::Router, router),
        ..FederationConfig::with_example_policy()
    })
    .await
    .unwrap();
    for (cluster, real, at) in
        [("polytech-campus", &clusters.origin, Where::Origin), ("physics-farm", &clusters.donor, Where::Donor)]
    {
        let inventory = InventorySource::Kubernetes(real.admin_kubeconfig_path());
        let spec = AgentSpec { place: place(&clusters, at, real.node_ip()), ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let request = federation.submit(2, "midrange").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let active = federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let namespace = active["donorNamespace"].as_str().unwrap().to_owned();
    let leased = federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation);

    // Started by the tenant, through the tunnel.
    let kubectl = async |args: &[&str], input: &str| clusters.origin.kubectl_as(&leased, args, input).await;
    kubectl(&["apply", "-f", "-"], &pod("probe", 2, PROBE_IMAGE)).await.or_logs(&federation);
    until("the container to run", PATIENCE, async || {
        let phase = kubectl(&["get", "pod", "probe", "-o", "jsonpath={.status.phase}"], "").await?;
        Ok((phase == "Running").then_some(()))
    })
    .await
    .or_logs(&federation);

    // It sees exactly its devices, and its log is read through the tunnel.
    let devices = kubectl(&["exec", "probe", "--", "/probe", "ls", "/dev"], "").await.or_logs(&federation);
    let seen = devices.split_whitespace().filter(|name| name.starts_with("nvidia")).count();
    assert_eq!(seen, 2, "{devices}");
    let log = kubectl(&["logs", "probe"], "").await.or_logs(&federation);
    assert!(log.contains("NVIDIA_VISIBLE_DEVICES"), "{log}");
    // It cannot reach anything outside its namespace: other namespaces by the API, host processes by its pid
    // namespace.
    assert!(kubectl(&["-n", "kube-system", "get", "pods"], "").await.is_err());
    let processes = kubectl(&["exec", "probe", "--", "/probe", "ls", "/proc"], "").await.or_logs(&federation);
    let pids: Vec<u32> = processes.split_whitespace().filter_map(|name| name.parse().ok()).collect();
    assert!(pids.len() <= 3 && pids.iter().all(|pid| *pid < 100), "{pids:?}");
    assert!(
        kubectl(&["exec", "probe", "--", "/probe", "cat", "/proc/1/environ"], "")
            .await
            .is_ok_and(|env| !env.contains("KUBECONFIG"))
    );

    let started = async || {
        let field = "jsonpath={.status.containerStatuses[0].state.running.startedAt}";
        kubectl(&["get", "pod", "probe", "-o", field], "").await
    };
    outlives_the_brokers(&mut federation, &started).await;
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    gpu_boxes::failures_are_counted(&federation, &clusters.donor, &lease, started, &log).await;

    // After release it is gone.
    federation.comity(&["lease", "release", &lease]).await.or_logs(&federation);
    federation.lease_in(&lease, "ended", PATIENCE).await.or_logs(&federation);
    let namespaces = clusters.donor.kubectl(&["get", "namespaces", "-o", "name"]).await.unwrap();
    assert!(!namespaces.contains(&namespace), "{namespaces}");
    let pods = clusters.donor.kubectl(&["get", "pods", "-A", "-o", "name"]).await.unwrap();
    assert!(!pods.contains("probe"), "{pods}");
    gpu_boxes::each_is_offered_as_it_is(&federation, &clusters.donor).await;
    drop(federation);
    if let Some(clusters) = std::sync::Arc::into_inner(clusters) {
        clusters.stop().await.unwrap();
    }
}

/// With all brokers down for a minute, the container keeps running and stays reachable: its start time, read through
/// the tunnel, stays the same.
async fn outlives_the_brokers(federation: &mut Federation, started: impl AsyncFn() -> Result<String, KubectlError>) {
    let before = started().await.or_logs(federation);
    for id in 1..=3 {
        federation.kill_broker(id).await.unwrap();
    }
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs(60) {
        assert_eq!(started().await.or_logs(federation), before, "the container was restarted");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    for id in 1..=3 {
        federation.start_broker(id).unwrap();
    }
}
