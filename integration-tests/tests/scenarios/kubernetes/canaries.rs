//! Canaries on real kubelets: a node lends once one saw no GPU there, and not while NVIDIA's container runtime hands
//! every GPU to a container that asks for all by its image; nor while nothing enforces NetworkPolicies, unless its
//! owner accepts that. The CNI plugin here enforces none, so the nodes' packet filters stand in for one that does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use comity_scenarios::{Federation, PATIENCE, until};
use comity_testkit::{Binaries, CANARY_IMAGE, RealCluster, RealClusters, VisibleDevices, write_canary_image};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::OrLogs as _;
use crate::gpu_boxes::GpuNode;

/// Drops what arrives from addresses of a set, before anything else.
const FILTER: &str = "add table inet canaries; add set inet canaries restricted { type ipv4_addr; }; \
                      add chain inet canaries arrived { type filter hook prerouting priority -300; }; \
                      add rule inet canaries arrived ip saddr @restricted drop";
/// How often the filter learns the addresses of new pods. The image's tries count from its 12th second.
const FILTER_INTERVAL: Duration = Duration::from_millis(500);

/// The section of the agent's configuration.
pub(crate) fn agent_section() -> String {
    format!("canary:\n  image: {CANARY_IMAGE}\n")
}

/// Enforces the NetworkPolicy of canaries on each node.
pub(crate) struct Enforcement {
    clusters: Arc<RealClusters>,
    learning: JoinHandle<()>,
}

impl Enforcement {
    pub(crate) async fn start(clusters: &Arc<RealClusters>) -> Self {
        filter(&clusters.donor, FILTER).await.unwrap();
        let of = Arc::clone(clusters);
        let learning = tokio::spawn(async move {
            loop {
                if let Ok(addresses) = restricted_addresses(&of.donor).await
                    && !addresses.is_empty()
                {
                    let add = format!("add element inet canaries restricted {{ {} }}", addresses.join(", "));
                    filter(&of.donor, &add).await.unwrap();
                }
                tokio::time::sleep(FILTER_INTERVAL).await;
            }
        });
        Self { clusters: Arc::clone(clusters), learning }
    }

    async fn stop(self) {
        self.learning.abort();
        let ended = self.learning.await;
        assert!(ended.as_ref().is_err_and(tokio::task::JoinError::is_cancelled), "{ended:?}");
        filter(&self.clusters.donor, "delete table inet canaries").await.unwrap();
    }
}

/// Runs a command of nft on each node.
async fn filter(donor: &RealCluster, command: &str) -> Result<()> {
    for node in 1..=donor.nodes() {
        donor.exec_in_nth_node(node, &["nft", command]).await?;
    }
    Ok(())
}

/// Addresses of the pods that the NetworkPolicy restricts.
async fn restricted_addresses(donor: &RealCluster) -> Result<Vec<String>> {
    let (label, addresses) = ("comity.dev/canary=restricted", "jsonpath={.items[*].status.podIP}");
    let listed = donor.kubectl(&["-n", "comity-canary", "get", "pods", "-l", label, "-o", addresses]).await?;
    Ok(listed.split_whitespace().map(str::to_owned).collect())
}

/// Puts the image on every node, as a registry would.
pub(crate) async fn import_image(donor: &RealCluster, dir: &Path) {
    let (scratch, archive) = (dir.join("canary-image"), dir.join("canary.tar"));
    write_canary_image(&scratch, &archive).unwrap();
    donor.import_image(&archive).await.unwrap();
}

/// Each node lends while NetworkPolicies are enforced there, and not without that, until its owner accepts it.
pub(crate) async fn network_policies_are_needed(
    federation: &mut Federation,
    donor: &RealCluster,
    cluster: &str,
    enforcement: Enforcement,
) {
    all_lend(federation, donor, cluster, true).await;
    for (role, exit_code) in [("control", 3), ("restricted", 0)] {
        assert_eq!(ended_with(donor, role, exit_code).await.or_logs(federation), donor.nodes(), "{role}");
    }

    enforcement.stop().await;
    delete_canaries(donor).await.or_logs(federation);
    let began = Instant::now();
    all_lend(federation, donor, cluster, false).await;
    until("an event on each node", PATIENCE, async || {
        for node in 1..=donor.nodes() {
            let told = reasons(donor, "ComityEgressOpen", &donor.nth_node_name(node)).await?;
            ensure!(told.contains("the CNI enforces no NetworkPolicies"), "node {node}: {told}");
        }
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    println!("NetworkPolicies that nothing enforces: known after {:.1} s", began.elapsed().as_secs_f32());
    all_lend(federation, donor, cluster, false).await;

    let accepted = format!("{}  networkPolicies: not-enforced\n", agent_section());
    federation
        .reconfigure_agent(cluster, |sections| sections.replace(&agent_section(), &accepted))
        .await
        .or_logs(federation);
    all_lend(federation, donor, cluster, true).await;
    assert_eq!(ended_with(donor, "restricted", 3).await.or_logs(federation), donor.nodes());
}

/// Waits until every node of the cluster lends, or none.
pub(crate) async fn all_lend(federation: &Federation, donor: &RealCluster, cluster: &str, expected: bool) {
    until(&format!("all nodes to lend: {expected}"), PATIENCE, async || {
        let offer = federation.comity_as("admin", &["offers", cluster]).await?;
        let nodes = offer["nodeDetails"].as_array().cloned().unwrap_or_default();
        let all = nodes.iter().all(|node| lends(node) == expected);
        if nodes.len() != usize::try_from(donor.nodes())? || !all {
            let told = ["-n", "comity-canary", "get", "pods,events", "-o", "wide"];
            bail!("{nodes:?}\n{}", donor.kubectl(&told).await?);
        }
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}

/// Number of canaries of a role that ended with an exit code.
pub(crate) async fn ended_with(donor: &RealCluster, role: &str, exit_code: i32) -> Result<u32> {
    let is_one = |pod: &&Value| {
        let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        pod["metadata"]["labels"]["comity.dev/canary"] == role && ended["exitCode"] == exit_code
    };
    Ok(u32::try_from(canaries(donor).await?.iter().filter(is_one).count())?)
}

fn lends(node: &Value) -> bool {
    node["schedulable"] == true
}

/// Deletes the canaries, which are the record of what was proved, so that each node is proved again. Does not wait: the
/// next ones have the same names.
pub(crate) async fn delete_canaries(donor: &RealCluster) -> Result<()> {
    donor.kubectl(&["-n", "comity-canary", "delete", "pods", "--all", "--wait=false"]).await?;
    Ok(())
}

async fn canaries(donor: &RealCluster) -> Result<Vec<Value>> {
    let pods: Value =
        serde_json::from_str(&donor.kubectl(&["-n", "comity-canary", "get", "pods", "-o", "json"]).await?)?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// The first node's default runtime becomes NVIDIA's, with its default settings, and then with the safe one.
pub(crate) async fn an_exposed_node_does_not_lend(on: &GpuNode<'_>, binaries: &Binaries) {
    let (federation, donor) = (on.federation, on.donor);
    for (setting, expected) in [(VisibleDevices::Obeyed, false), (VisibleDevices::Ignored, true)] {
        let began = Instant::now();
        donor.use_nvidia_runtime(binaries, setting).await.or_logs(federation);
        // Neither boot nor version changed, so the agent keeps its proof until somebody removes that.
        delete_canaries(donor).await.or_logs(federation);
        until(&format!("a canary to tell that the devices are {setting:?}"), PATIENCE, async || {
            let reason = reasons(donor, "ComityGpusExposed", &donor.node_name()).await?;
            let lends = lends(&offered(on).await?);
            let is_told = reason.contains("/dev/nvidia0") && reason.contains("/dev/nvidia1");
            ensure!(lends == expected && is_told, "{lends} {reason}; {:#?}", canaries(donor).await?);
            Ok(Some(()))
        })
        .await
        .or_logs(federation);
        println!("{setting:?}: known after {:.1} s", began.elapsed().as_secs_f32());
    }
}

async fn offered(on: &GpuNode<'_>) -> Result<Value> {
    let offer = on.federation.comity_as("admin", &["offers", on.cluster]).await?;
    let nodes = offer["nodeDetails"].as_array().into_iter().flatten();
    Ok(nodes.into_iter().find(|node| node["id"] == on.id).cloned().unwrap_or_default())
}

/// What the events on a node say that have this reason.
pub(crate) async fn reasons(donor: &RealCluster, reason: &str, node: &str) -> Result<String> {
    let of = format!("reason={reason},involvedObject.name={node}");
    Ok(donor.kubectl(&["get", "events", "-A", "--field-selector", &of, "-o", "jsonpath={.items[*].message}"]).await?)
}
