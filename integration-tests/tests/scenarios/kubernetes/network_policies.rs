//! Calico on real kubelets: its nodes are proved by canaries, guests reach what their NetworkPolicy leaves open and
//! nothing else, and a node on which Felix no longer enforces it is found.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use comity_scenarios::burst::place;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{
    Binaries, Cni, KubectlError, RealCluster, RealClusters, RealClustersConfig, Where, missing_for_canary_image,
    requirements,
};

use crate::OrLogs as _;
use crate::agents_account::agents_account;
use crate::canaries;
use crate::control_planes::pod;
use crate::two_classes::TenantLease;

const ORIGIN: &str = "polytech-campus";
const DONOR: &str = "ncc-main";
/// The donor closes its nodes' network, whose addresses count as public, and opens a private network. No registry runs.
const SHARING: &str =
    "sharing:\n  alwaysPullImages: false\n  egress:\n    allow: [192.168.88.0/24]\n    deny: [203.0.113.0/24]\n";
/// Addresses of a server outside: a cloud's metadata service, a private one, a private one that is open, a public one.
const OUTSIDE: [&str; 4] = ["169.254.169.254", "192.168.77.1", "192.168.88.1", "192.0.2.80"];
/// Removes the packet filters of Felix, which writes them with iptables over nftables. Those of kube-proxy stay.
const FLUSH: &str = "for table in raw mangle nat filter; do nft delete table ip $table; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn guests_are_confined_where_calico_enforces_network_policies_and_its_failure_is_found() {
    let missing = [RealClusters::missing(), Cni::Calico.missing(), missing_for_canary_image()].concat();
    if !requirements::met("a network plugin that enforces NetworkPolicies", &missing) {
        return;
    }
    let binaries = Binaries::with_calico().await.unwrap();
    let config =
        RealClustersConfig { donor_gpus: 2, donor_nodes: 2, donor_cni: Cni::Calico, ..RealClustersConfig::default() };
    let clusters = Arc::new(RealClusters::start(&binaries, config).await.unwrap());
    let donor = &clusters.donor;
    let federation = federation_of(&clusters).await;
    let began = Instant::now();
    let said = |what: &str| println!("{:>7} ms  {what}", began.elapsed().as_millis());

    canaries::all_lend(&federation, donor, DONOR, true).await;
    for (role, exit_code) in [("control", 3), ("restricted", 0)] {
        assert_eq!(canaries::ended_with(donor, role, exit_code).await.or_logs(&federation), donor.nodes(), "{role}");
    }
    said("both nodes are proved under Calico, and lend");

    let _server = serve_outside(&clusters, &binaries.program("probe")).await.unwrap();
    let lease = TenantLease::of(&federation, &clusters, 1, "midrange", &[]).await;
    lease.run(&federation, "probe").await;
    let places = Places::make(donor, &lease).await.or_logs(&federation);
    for url in places.open.iter().chain(&places.closed) {
        get_as_donor(donor, url).await.or_logs(&federation);
    }
    places.check_confined(&lease).await.or_logs(&federation);
    let from_outside = places.lease.iter().map(|url| get_as_donor(donor, url));
    for answer in futures::future::join_all(from_outside).await {
        assert!(answer.is_err(), "a pod of the donor reaches one of the lease: {answer:?}");
    }
    said("the guest reaches its neighbour, DNS, a public and an allowed address, and nothing that its policy closes");

    let node = number_of_node(donor, &lease).await.or_logs(&federation);
    donor.signal_in_nth_node(node, "felix", "KILL").await.unwrap();
    donor.exec_in_nth_node(node, &["sh", "-c", FLUSH]).await.unwrap();
    for url in &places.closed {
        get_as_guest(&lease, url).await.or_logs(&federation);
    }
    said("without Felix and its packet filters the guest reaches all that was closed");
    canaries::delete_canaries(donor).await.or_logs(&federation);
    lends(&federation, &lease, false).await;
    let name = donor.nth_node_name(node);
    // The node lends no more from when its canaries are gone, and says why once the next ones have found it.
    let says_so = async || {
        let told = canaries::reasons(donor, "ComityEgressOpen", &name).await?;
        Ok(told.contains("the CNI enforces no NetworkPolicies").then_some(()))
    };
    until("the canaries to say what is open", PATIENCE, says_so).await.or_logs(&federation);
    federation.lease_in(&lease.id, "active", PATIENCE).await.or_logs(&federation);
    said("canaries find it: the node lends no more, the other one does");

    donor.start_daemon_in_nth_node(node, "felix").await.unwrap();
    let confined = async || places.check_confined(&lease).await.map(Some);
    until("the guest to be confined again", PATIENCE, confined).await.or_logs(&federation);
    canaries::delete_canaries(donor).await.or_logs(&federation);
    lends(&federation, &lease, true).await;
    said("Felix runs again: the guest is confined, and both nodes lend");

    lease.ends(&federation).await;
    drop((lease, federation));
    if let Some(clusters) = Arc::into_inner(clusters) {
        clusters.stop().await.unwrap();
    }
}

/// A broker in the router, and the agents of both clusters; the donor's has only the rights of `deploy/agent`.
async fn federation_of(clusters: &Arc<RealClusters>) -> Federation {
    let router = clusters.router_address(Where::Origin);
    let place_of = |at, address| place(clusters, at, address);
    let config = FederationConfig {
        brokers: 1,
        place: place_of(Where::Router, router),
        ..FederationConfig::with_example_policy()
    };
    let mut federation = Federation::start(config).await.unwrap();
    let (origin, donor) = (&clusters.origin, &clusters.donor);
    let account = agents_account(donor, federation.dir(), &["canary.yaml"]).await;
    canaries::import_image(donor, federation.dir()).await;
    let origins = InventorySource::Kubernetes(origin.admin_kubeconfig_path());
    let agent = AgentSpec { place: place_of(Where::Origin, origin.node_ip()), ..AgentSpec::new(ORIGIN, origins) };
    federation.join(agent).await.or_logs(&federation);
    let agent = AgentSpec {
        place: place_of(Where::Donor, donor.node_ip()),
        more: [&canaries::agent_section(), SHARING].concat(),
        ..AgentSpec::new(DONOR, InventorySource::AsAgent(account))
    };
    federation.join(agent).await.or_logs(&federation);
    federation.all_connected().await.or_logs(&federation);
    federation
}

/// A server behind the router, at the addresses [`OUTSIDE`]. It ends with this value.
async fn serve_outside(clusters: &RealClusters, probe: &Path) -> Result<tokio::process::Child> {
    for address in OUTSIDE {
        let network = format!("{address}/32");
        let add = ["address", "add", &network, "dev", "lo"];
        let status = clusters.command_in(Where::Router, Path::new("ip"), &add).status().await?;
        ensure!(status.success(), "ip address add {network}: {status}");
    }
    let mut server = clusters.command_in(Where::Router, probe, &[]);
    server.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).kill_on_drop(true);
    server.spawn().context("the server does not start")
}

/// What a guest may reach, and what it may not, as URLs. A pod of the donor reaches all but those of the lease.
struct Places {
    open: Vec<String>,
    closed: Vec<String>,
    /// Pods of the lease: the guest itself and its neighbour.
    lease: [String; 2],
}

impl Places {
    /// Starts pods to be reached: one more of the lease, two of the donor, of which one stands in for its DNS.
    async fn make(donor: &RealCluster, lease: &TenantLease) -> Result<Self> {
        let neighbour = pod("neighbour", 0, PROBE_IMAGE);
        lease.kubectl(&["apply", "-f", "-"], &neighbour).await?;
        let own = pod("own", 0, PROBE_IMAGE);
        donor.kubectl_with_input(&["-n", "default", "apply", "-f", "-"], &own).await?;
        let dns = pod("dns", 0, PROBE_IMAGE).replace(r#""env": ["#, r#""env": [{"name": "PORT", "value": "5353"}, "#);
        donor.kubectl_with_input(&["-n", "kube-system", "apply", "-f", "-"], &dns).await?;
        let address = async |namespace: &str, name: &str| -> Result<String> {
            let ready = format!("pod/{name}");
            donor.kubectl(&["-n", namespace, "wait", "--for=condition=Ready", &ready, "--timeout=110s"]).await?;
            let field = "jsonpath={.status.podIP}";
            Ok(donor.kubectl(&["-n", namespace, "get", "pod", name, "-o", field]).await?)
        };
        let at = |address: &str| format!("http://{address}:8080/");
        let [metadata, private, allowed, public] = OUTSIDE.map(at);
        let neighbour = at(&address(&lease.namespace, "neighbour").await?);
        let dns = format!("http://{}:5353/", address("kube-system", "dns").await?);
        let own = at(&address("default", "own").await?);
        // HTTPS servers answer plain HTTP with an error, which shows that they are reached.
        let kubelet = format!("http://{}:10250/", donor.node_ip());
        let service = format!("http://{}:443/", donor.kubectl(&["get", "svc", "kubernetes", "-o", CLUSTER_IP]).await?);
        let guest = at(&address(&lease.namespace, "probe").await?);
        Ok(Self {
            open: vec![dns, allowed, public],
            closed: vec![metadata, private, own, kubelet, service],
            lease: [guest, neighbour],
        })
    }

    /// Checks that the guest reaches what is open, and nothing that is closed.
    async fn check_confined(&self, lease: &TenantLease) -> Result<()> {
        for url in self.open.iter().chain(&self.lease) {
            get_as_guest(lease, url).await.with_context(|| format!("{url} is closed to the guest"))?;
        }
        // All at once, because each takes until its timeout.
        let answers = futures::future::join_all(self.closed.iter().map(|url| get_as_guest(lease, url))).await;
        for (url, answer) in self.closed.iter().zip(answers) {
            let refusal = answer.err().with_context(|| format!("the guest reaches {url}"))?.to_string();
            ensure!(refusal.contains("Client.Timeout"), "{url}: {refusal}");
        }
        Ok(())
    }
}

const CLUSTER_IP: &str = "jsonpath={.spec.clusterIP}";

async fn get_as_guest(lease: &TenantLease, url: &str) -> Result<String, KubectlError> {
    lease.kubectl(&["exec", "probe", "--", "/probe", "get", url], "").await
}

async fn get_as_donor(donor: &RealCluster, url: &str) -> Result<String, KubectlError> {
    donor.kubectl(&["-n", "default", "exec", "own", "--", "/probe", "get", url]).await
}

/// The number of the node on which the guest runs.
async fn number_of_node(donor: &RealCluster, lease: &TenantLease) -> Result<u32> {
    let name = ["-n", &lease.namespace, "get", "pod", "probe", "-o", "jsonpath={.spec.nodeName}"];
    let name = donor.kubectl(&name).await?;
    (1..=donor.nodes()).find(|node| donor.nth_node_name(*node) == name).with_context(|| format!("no node is {name}"))
}

/// Waits until all nodes are proved again, and the lease's lends or does not.
async fn lends(federation: &Federation, lease: &TenantLease, expected: bool) {
    until(&format!("the lease's node to lend: {expected}"), PATIENCE, async || {
        let offer = federation.comity_as("admin", &["offers", DONOR]).await?;
        let nodes = offer["nodeDetails"].as_array().context("there are nodes")?;
        let is_as_expected =
            |node: &serde_json::Value| (node["schedulable"] == true) == (expected || node["id"] != lease.node.as_str());
        ensure!(nodes.len() == 2 && nodes.iter().all(is_as_expected), "{nodes:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}
