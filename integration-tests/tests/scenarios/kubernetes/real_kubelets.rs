//! Two clusters with real kubelets. The donor has two nodes of different cards: the tenants' containers really run
//! there, with the devices of their leases and no others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_scenarios::burst::place;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE};
use comity_testkit::{
    Binaries, KubectlError, Needs, RealClusters, RealClustersConfig, Where, missing_for_canary_image, requirements,
};

use crate::OrLogs as _;
use crate::agents_account::agents_account;
use crate::canaries::{self, Enforcement};
use crate::gpu_boxes::{self, GpuNode};
use crate::held_devices;
use crate::mig_box::{self, MigManager};
use crate::run_command;
use crate::two_classes::TenantLease;

const ORIGIN: &str = "polytech-campus";
const DONOR: &str = "ncc-main";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_container_runs_on_the_donor_and_outlives_the_brokers() {
    if !requirements::met(
        "a tenant's container runs on the donor",
        &[RealClusters::missing(), missing_for_canary_image()].concat(),
    ) {
        return;
    }
    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let config = RealClustersConfig { origin_gpus: 0, donor_gpus: 4, donor_nodes: 2, ..RealClustersConfig::default() };
    let clusters = Arc::new(RealClusters::start(&binaries, config).await.unwrap());
    let manager = MigManager::start(&clusters).await;
    let enforcement = Enforcement::start(&clusters).await;
    let mut federation = federation_of(&clusters).await;
    mig_box::is_offered_cut(&federation, DONOR).await;
    canaries::network_policies_are_needed(&mut federation, &clusters.donor, DONOR, enforcement).await;

    let reader = held_devices::start_reader(&federation, &clusters.donor);
    // One lease of each card: two L40S, and a half of an H100, for which a GPU is cut.
    let whole = TenantLease::of(&federation, &clusters, 2, "midrange", &[]).await;
    let half = TenantLease::of(&federation, &clusters, 1, "frontier", &["--mig", "3g.40gb"]).await;
    mig_box::is_cut(&federation, &clusters.donor).await;
    let (log, devices) = whole.run(&federation, "probe").await;
    // It sees exactly its devices, and its log is read through the tunnel.
    assert_eq!(devices.len(), 2, "{devices:?}");
    assert!(log.contains("NVIDIA_VISIBLE_DEVICES"), "{log}");
    held_devices::are_as_containers_have_them(&federation, &clusters.donor, DONOR, &whole, &log).await;
    the_container_is_alone(&whole).await;
    mig_box::has_one_instance(&half.run(&federation, "half").await);
    // The other GPU is cut and merged back beside it.
    let before = half.started("half").await.or_logs(&federation);
    TenantLease::of(&federation, &clusters, 1, "frontier", &["--mig", "2g.20gb"]).await.ends(&federation).await;
    assert_eq!(half.started("half").await.or_logs(&federation), before, "the container was restarted");

    let started = async || whole.started("probe").await;
    let attempts = async || {
        let donor = &clusters.donor;
        whole.gives_no_more("probe", &half, &donor.nth_node_name(mig_box::NODE)).await;
        half.gives_no_more("half", &whole, &donor.node_name()).await;
    };
    outlives_the_brokers(&mut federation, &started, attempts).await;
    for lease in [&whole, &half] {
        federation.lease_in(&lease.id, "active", PATIENCE).await.or_logs(&federation);
        lease.lasts_no_longer(&federation).await;
    }

    half.ends(&federation).await;
    mig_box::is_merged_back(&federation, &clusters.donor, DONOR).await;
    run_command::a_command_runs(&federation, &clusters, ORIGIN).await;
    manager.stop().await;
    let node = GpuNode { federation: &federation, donor: &clusters.donor, cluster: DONOR, id: &whole.node };
    gpu_boxes::failures_are_counted(&node, &whole.id, started, &log).await;
    whole.ends(&federation).await;
    gpu_boxes::a_lease_moves_off_failed_gpus(&node, &clusters).await;
    gpu_boxes::each_is_offered_as_it_is(&node).await;
    canaries::an_exposed_node_does_not_lend(&node, &binaries).await;
    drop((reader, federation, whole, half));
    if let Some(clusters) = Arc::into_inner(clusters) {
        clusters.stop().await.unwrap();
    }
}

/// Three brokers in the router, and the agents of both clusters; the donor's has only the rights of `deploy/agent`.
async fn federation_of(clusters: &Arc<RealClusters>) -> Federation {
    let router = clusters.router_address(Where::Origin);
    let mut federation = Federation::start(FederationConfig {
        brokers: 3,
        place: place(clusters, Where::Router, router),
        ..FederationConfig::with_example_policy()
    })
    .await
    .unwrap();
    let account = agents_account(&clusters.donor, federation.dir(), &["mig.yaml", "canary.yaml"]).await;
    canaries::import_image(&clusters.donor, federation.dir()).await;
    let (origin, donor) = (&clusters.origin, &clusters.donor);
    let devices = held_devices::agent_section(donor, federation.dir()).await.unwrap();
    let donors_sections = [mig_box::AGENT_SECTION, &canaries::agent_section(), &devices].concat();
    let origins = InventorySource::Kubernetes(origin.admin_kubeconfig_path());
    for (cluster, real, at, inventory, more) in [
        (ORIGIN, origin, Where::Origin, origins, ""),
        (DONOR, donor, Where::Donor, InventorySource::AsAgent(account), donors_sections.as_str()),
    ] {
        let place = place(clusters, at, real.node_ip());
        let spec = AgentSpec { place, more: more.to_owned(), ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    federation
}

/// The container cannot reach anything outside its namespace: other namespaces by the API, host processes by its pid
/// namespace.
async fn the_container_is_alone(lease: &TenantLease) {
    assert!(lease.kubectl(&["-n", "kube-system", "get", "pods"], "").await.is_err());
    let processes = lease.kubectl(&["exec", "probe", "--", "/probe", "ls", "/proc"], "").await.unwrap();
    let pids: Vec<u32> = processes.split_whitespace().filter_map(|name| name.parse().ok()).collect();
    assert!(pids.len() <= 3 && pids.iter().all(|pid| *pid < 100), "{pids:?}");
    assert!(
        lease
            .kubectl(&["exec", "probe", "--", "/probe", "cat", "/proc/1/environ"], "")
            .await
            .is_ok_and(|env| !env.contains("KUBECONFIG"))
    );
}

/// With all brokers down for a minute, the container keeps running and stays reachable: its start time, read through
/// the tunnel, stays the same. The donor refuses the tenants' attempts without a broker.
async fn outlives_the_brokers(
    federation: &mut Federation,
    started: impl AsyncFn() -> Result<String, KubectlError>,
    attempts: impl AsyncFn(),
) {
    let before = started().await.or_logs(federation);
    for id in 1..=3 {
        federation.kill_broker(id).await.unwrap();
    }
    let outage = Instant::now();
    attempts().await;
    while outage.elapsed() < Duration::from_secs(60) {
        assert_eq!(started().await.or_logs(federation), before, "the container was restarted");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    for id in 1..=3 {
        federation.start_broker(id).unwrap();
    }
}
