//! A node whose GPUs the agent cuts for leases. NVIDIA's device plugin and GPU Feature Discovery follow each cut; a
//! task stands in for NVIDIA's MIG manager, which needs a driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comity_scenarios::{Federation, PATIENCE, until};
use comity_testkit::{Board, GpuBox, MigLayouts, RealCluster, RealClusters};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::OrLogs as _;
use crate::gpu_boxes::{object, offered_nodes};

/// The number of the donor's node.
pub(crate) const NODE: u32 = 2;
const GPUS: usize = 2;
const CONFIG_LABEL: &str = "nvidia.com/mig.config";
const NAMESPACE: &str = "gpu-operator";
const CONFIG_MAP: &str = "mig-parted-config";
/// The owner's configuration.
const OWNERS: &str = "sevenths";
const CONFIGURATIONS: &str = "version: v1
mig-configs:
  sevenths:
    - devices: all
      mig-enabled: true
      mig-devices:
        \"1g.10gb\": 7
";
/// The section of the agent's configuration.
pub(crate) const AGENT_SECTION: &str =
    "mig:\n  repartition: true\n  configMap: gpu-operator/mig-parted-config\n  emptySeconds: 2\n";
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The stand-in for the MIG manager.
pub(crate) struct MigManager(JoinHandle<()>);

impl MigManager {
    /// Lets the agent cut the node, and applies the owner's configuration there.
    pub(crate) async fn start(clusters: &Arc<RealClusters>) -> Self {
        let donor = &clusters.donor;
        donor.kubectl(&["create", "namespace", NAMESPACE]).await.unwrap();
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "config.yaml": CONFIGURATIONS },
            "metadata": { "name": CONFIG_MAP, "namespace": NAMESPACE } });
        donor.kubectl_with_input(&["apply", "-f", "-"], &map.to_string()).await.unwrap();
        let owners = format!("{CONFIG_LABEL}={OWNERS}");
        donor.kubectl(&["label", "node", &donor.nth_node_name(NODE), "comity.dev/mig=true", &owners]).await.unwrap();
        let clusters = Arc::clone(clusters);
        Self(tokio::spawn(async move {
            if let Err(error) = run(&clusters.donor).await {
                eprintln!("the stand-in for the MIG manager ends: {error:#}");
            }
        }))
    }

    pub(crate) async fn stop(self) {
        self.0.abort();
        drop(self.0.await);
    }
}

/// Follows the label of the node as the manager does: all instances of a device that changes are destroyed, and none
/// may be in use.
async fn run(donor: &RealCluster) -> Result<()> {
    let mut applied = String::new();
    let mut layouts = MigLayouts(vec![None; GPUS]);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let node = object(donor, &donor.nth_node_name(NODE)).await?;
        let wanted = node["metadata"]["labels"][CONFIG_LABEL].as_str().unwrap_or_default().to_owned();
        if wanted == applied {
            continue;
        }
        set_state(donor, "pending").await?;
        let read = ["-n", NAMESPACE, "get", "configmap", CONFIG_MAP, "-o", "json"];
        let map: Value = serde_json::from_str(&donor.kubectl(&read).await?)?;
        let text = map["data"]["config.yaml"].as_str().context("the ConfigMap has configurations")?;
        let used = used_resources(donor).await?;
        let may = |next: &MigLayouts| {
            !layouts.cleared(next).iter().any(|profile| used.contains_key(&format!("nvidia.com/mig-{profile}")))
        };
        match MigLayouts::read(text, &wanted, GPUS).ok().filter(may) {
            Some(next) => {
                donor.set_gpus(NODE, &GpuBox::configured(Board::H100, &next)).await?;
                set_state(donor, "success").await?;
                layouts = next;
            }
            None => set_state(donor, "failed").await?,
        }
        applied = wanted;
    }
}

async fn set_state(donor: &RealCluster, state: &str) -> Result<()> {
    let label = format!("{CONFIG_LABEL}.state={state}");
    donor.kubectl(&["label", "node", "--overwrite", &donor.nth_node_name(NODE), &label]).await?;
    Ok(())
}

/// Limits of the node's pods that have not ended.
async fn used_resources(donor: &RealCluster) -> Result<BTreeMap<String, Value>> {
    let on_node = format!(
        "--field-selector=spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed",
        donor.nth_node_name(NODE)
    );
    let pods: Value = serde_json::from_str(&donor.kubectl(&["get", "pods", "-A", &on_node, "-o", "json"]).await?)?;
    let pods = pods["items"].as_array().into_iter().flatten();
    let containers = pods.flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
    let limits = containers.filter_map(|container| container["resources"]["limits"].as_object().cloned());
    Ok(limits.flatten().collect())
}

/// The offer shows both GPUs as the owner cut them, and that the agent may cut them.
pub(crate) async fn is_offered_cut(federation: &Federation, cluster: &str) {
    let slots: Vec<String> = (0..7).map(|start| format!("1g.10gb@{start}")).collect();
    let device = format!("NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/mig mig:{},repartition", slots.join(","));
    until("the offer to show seven instances of each GPU", PATIENCE, async || {
        let nodes = offered_nodes(federation, cluster).await?;
        ensure!(nodes.iter().any(|(_, devices)| devices[..] == [device.clone(), device.clone()]), "{nodes:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}

/// A container with one instance sees that and nothing else: `seen` is its log, and its device nodes.
pub(crate) fn has_one_instance(seen: &(String, Vec<String>)) {
    let (log, devices) = seen;
    let visible = log.lines().find_map(|line| line.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).unwrap_or_default();
    assert!(visible.starts_with("MIG-") && !visible.contains(','), "{log}");
    let gpus = devices.iter().filter(|device| device.trim_start_matches("nvidia").parse::<u32>().is_ok()).count();
    assert_eq!(gpus, 1, "{devices:?}");
}

/// The node's counts of instances, by profile: capacity and allocatable.
async fn counts(donor: &RealCluster, profile: &str) -> Result<(String, String)> {
    let node = object(donor, &donor.nth_node_name(NODE)).await?;
    let count =
        |of: &str| node["status"][of][format!("nvidia.com/mig-{profile}")].as_str().unwrap_or("none").to_owned();
    Ok((count("capacity"), count("allocatable")))
}

/// The GPU of the ended lease is empty for long enough: it is as its owner cut it, and the kubelet still counts the
/// other profile, with nothing allocatable.
pub(crate) async fn is_merged_back(federation: &Federation, donor: &RealCluster, cluster: &str) {
    let began = Instant::now();
    until("the owner's configuration to return", PATIENCE, async || {
        let node = object(donor, &donor.nth_node_name(NODE)).await?;
        let metadata = &node["metadata"];
        ensure!(metadata["labels"][CONFIG_LABEL] == OWNERS, "{metadata}");
        ensure!(metadata["annotations"]["comity.dev/mig-config-before"].is_null(), "{metadata}");
        let (sevenths, halves) = (counts(donor, "1g.10gb").await?, counts(donor, "3g.40gb").await?);
        ensure!(sevenths == ("14".to_owned(), "14".to_owned()), "{sevenths:?}");
        ensure!(halves == ("1".to_owned(), "0".to_owned()), "{halves:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    is_offered_cut(federation, cluster).await;
    println!("merged back and offered {:.1} s after the lease", began.elapsed().as_secs_f32());
}

/// One GPU is cut for a lease of a half, with the owner's instances beside it; the other stays as its owner cut it.
pub(crate) async fn is_cut(federation: &Federation, donor: &RealCluster) {
    until("the device plugin to count a half of one GPU", PATIENCE, async || {
        let (sevenths, halves) = (counts(donor, "1g.10gb").await?, counts(donor, "3g.40gb").await?);
        ensure!(sevenths == ("11".to_owned(), "11".to_owned()), "{sevenths:?}");
        ensure!(halves == ("1".to_owned(), "1".to_owned()), "{halves:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}
