//! Two replicas of a donor's agent on one control plane: the active one is killed, then paused, then without its API
//! server.

use std::path::Path;
use std::time::{Duration, Instant};

use comity_scenarios::{
    AgentSpec, Federation, FederationConfig, InventorySource, Launcher, PATIENCE, Place, Process, free_port, program,
    until,
};
use comity_testkit::{Component, ControlPlane, SimulatedNode};

use crate::OrLogs as _;
use crate::control_planes::control_plane;

const RIGHTS: &str = include_str!("../../../../deploy/agent/standby/rbac.yaml");
/// The longest takeover: the Lease's term of 6 s, and the start of the agent.
const TAKEOVER: Duration = Duration::from_secs(15);

/// Starts replicas of the agent of one cluster: as the pods of a Deployment, they share the configuration and nothing
/// else.
struct Replicas {
    ports: [u16; 2],
}

impl Replicas {
    fn place(&self) -> Place {
        let own = self.variables(0);
        let launch: Launcher = std::sync::Arc::new(move |program: &Path, args: &[String]| {
            let mut command = tokio::process::Command::new(program);
            command.args(args).envs(own.clone());
            command
        });
        Place { launch, ..Place::here() }
    }

    fn variables(&self, number: usize) -> Vec<(String, String)> {
        let endpoints = self.ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        [
            ("COMITY_AGENT_STANDBY_LEASE_SECONDS", "6".to_owned()),
            ("COMITY_AGENT_FABRIC_LISTEN", format!("127.0.0.1:{}", self.ports[number])),
            ("COMITY_AGENT_FABRIC_ENDPOINTS", endpoints),
            ("HOSTNAME", format!("replica-{number}")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Starts one outside the federation's own list, with an empty state directory of its own.
    fn start(&self, number: usize, federation: &Federation, state: &str) -> Process {
        let mut command = tokio::process::Command::new(program("comity-agent").unwrap());
        let config = federation.dir().join("ncc-main.yaml");
        command.args(["run", "--config", config.to_str().unwrap()]).envs(self.variables(number));
        command.env("COMITY_AGENT_STATE", federation.dir().join(state));
        Process::start(state, command, &federation.dir().join(format!("{state}.log"))).unwrap()
    }
}

async fn holder(donor: &ControlPlane) -> String {
    let holder = "jsonpath={.spec.holderIdentity}";
    donor.kubectl(&["-n", "comity-system", "get", "lease", "comity-agent", "-o", holder]).await.unwrap()
}

/// Waits until the donor's API answers through the tunnel, and returns how long that took.
async fn answers(origin: &ControlPlane, leased: &Path, federation: &Federation) -> Duration {
    let start = Instant::now();
    until("the donor's API through the tunnel", PATIENCE, async || {
        let get = ["get", "resourcequota", "gpus", "--request-timeout=1s"];
        origin.kubectl_as(leased, &get, "").await?;
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    start.elapsed()
}

/// Without an API server the active agent cannot know whether it has a successor, so it ends its stream.
async fn leaves_the_brokers_without_its_api_server(donor: &ControlPlane, federation: &Federation) {
    let api_server = donor.pid(Component::ApiServer).unwrap();
    Process::signal(api_server, "STOP").await.unwrap();
    let left = until("the end of the agent's stream", PATIENCE, async || {
        let clusters = federation.comity_as("admin", &["cluster", "list"]).await?;
        let donor = clusters["items"].as_array().into_iter().flatten().find(|item| item["id"] == "ncc-main");
        Ok(donor.is_some_and(|donor| donor["connected"] != true).then_some(()))
    });
    let left = left.await;
    Process::signal(api_server, "CONT").await.unwrap();
    left.or_logs(federation);
    federation.all_connected().await.or_logs(federation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_the_leases_of_a_killed_agent_and_a_paused_one_stays_silent() {
    let clusters = tempfile::tempdir().unwrap();
    let (origin, donor) = tokio::join!(
        control_plane(clusters.path(), "origin", vec![SimulatedNode::without_gpus("campus-1")]),
        control_plane(clusters.path(), "donor", vec![SimulatedNode::h100("ncc-1", 8)]),
    );
    donor.kubectl(&["create", "namespace", "comity-system"]).await.unwrap();
    donor.kubectl_with_input(&["apply", "-f", "-"], RIGHTS).await.unwrap();
    let replicas = Replicas { ports: [free_port().unwrap(), free_port().unwrap()] };
    let mut federation = Federation::start(FederationConfig::with_example_policy()).await.unwrap();
    for (cluster, plane, place) in [("polytech-campus", &origin, Place::here()), ("ncc-main", &donor, replicas.place())]
    {
        let inventory = InventorySource::Kubernetes(plane.admin_kubeconfig_path());
        federation.join(AgentSpec { place, ..AgentSpec::new(cluster, inventory) }).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    assert!(holder(&donor).await.starts_with("replica-0"));
    let second = replicas.start(1, &federation, "second");
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let leased = federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation);
    answers(&origin, &leased, &federation).await;
    assert!(!federation.dir().join("second/identity").exists(), "a standby has no keys");

    federation.kill_agent("ncc-main").await.unwrap();
    let outage = answers(&origin, &leased, &federation).await;
    println!("takeover after kill -9: {outage:?}");
    assert!(outage < TAKEOVER, "{outage:?}: {}", second.log_tail());
    assert!(holder(&donor).await.starts_with("replica-1"));
    federation.all_connected().await.or_logs(&federation);
    let shown = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation);
    assert_eq!(shown["state"], "active", "{shown}");

    // Another standby, with a state directory of an earlier life; and the active one is paused.
    federation.start_agent("ncc-main").unwrap();
    until("a standby", PATIENCE, async || {
        let log = federation.log_of("ncc-main")?;
        Ok(log.contains("this replica is a standby").then_some(()))
    })
    .await
    .or_logs(&federation);
    let pid = second.pid().unwrap();
    Process::signal(pid, "STOP").await.unwrap();
    let outage = answers(&origin, &leased, &federation).await;
    println!("takeover after SIGSTOP: {outage:?}");
    assert!(outage < TAKEOVER, "{outage:?}");
    Process::signal(pid, "CONT").await.unwrap();
    let mut second = second;
    let status = second.ended(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(1), "it ends, and would start again as a standby: {}", second.log_tail());
    assert!(second.log_tail().contains("another replica is the active agent now"), "{}", second.log_tail());
    assert!(holder(&donor).await.starts_with("replica-0"));
    federation.all_connected().await.or_logs(&federation);
    answers(&origin, &leased, &federation).await;
    leaves_the_brokers_without_its_api_server(&donor, &federation).await;
    answers(&origin, &leased, &federation).await;
    federation.comity(&["lease", "release", "--yes", &lease]).await.or_logs(&federation);
    federation.lease_in(&lease, "ended", PATIENCE).await.or_logs(&federation);
    drop(federation);
    origin.stop().await.unwrap();
    donor.stop().await.unwrap();
}
