//! GPUs of a real node, told by NVIDIA's own device plugin and GPU Feature Discovery, as the agent offers them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comity_scenarios::{Federation, PATIENCE, until};
use comity_testkit::{Board, GpuBox, KubectlError, MigStrategy, RealCluster, RealClusters, SharedName};
use serde_json::{Value, json};

use crate::OrLogs as _;
use crate::two_classes::TenantLease;

/// "GPU has fallen off the bus".
const XID: u32 = 79;
/// The kubelet reports every five seconds.
const COUNTED_WITHIN: Duration = Duration::from_secs(30);

/// A configuration of the node, and its offer.
struct Case {
    gpus: GpuBox,
    /// Resources that the node still counts, with nothing allocatable, from the configuration before.
    ghosts: &'static [&'static str],
    devices: &'static [&'static str],
}

/// In this order, so that each leaves names of the one before.
fn cases() -> [Case; 5] {
    let h100 = |name| GpuBox::time_sliced(Board::H100, 2, 4, name);
    let mixed: &[&[&str]] = &[&["3g.40gb", "3g.40gb"], &["2g.20gb", "1g.10gb+me"]];
    [
        Case {
            gpus: h100(SharedName::Kept),
            ghosts: &[],
            devices: &["NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu time-slicing:4"; 2],
        },
        Case {
            gpus: h100(SharedName::Renamed),
            ghosts: &["nvidia.com/gpu"],
            devices: &["NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu.shared time-slicing:4"; 2],
        },
        Case {
            gpus: GpuBox::cut(Board::H100, MigStrategy::Mixed, mixed),
            ghosts: &["nvidia.com/gpu", "nvidia.com/gpu.shared"],
            devices: &[
                "NVIDIA-H100-80GB-HBM3 9984 MiB nvidia.com/mig mig:1g.10gb+me*1",
                "NVIDIA-H100-80GB-HBM3 20096 MiB nvidia.com/mig mig:2g.20gb*1",
                "NVIDIA-H100-80GB-HBM3 40448 MiB nvidia.com/mig mig:3g.40gb*2",
            ],
        },
        Case {
            gpus: GpuBox::cut(Board::H100, MigStrategy::Single, &[&["1g.10gb+me"]]),
            ghosts: &["nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-2g.20gb"],
            devices: &["NVIDIA-H100-80GB-HBM3 9984 MiB nvidia.com/gpu mig:1g.10gb+me*1"],
        },
        Case {
            gpus: GpuBox::whole(Board::A100, 2),
            ghosts: &["nvidia.com/mig-1g.10gb"],
            devices: &["NVIDIA-A100-SXM4-40GB 40960 MiB nvidia.com/gpu exclusive"; 2],
        },
    ]
}

/// The donor's first node.
pub(crate) struct GpuNode<'a> {
    pub(crate) federation: &'a Federation,
    pub(crate) donor: &'a RealCluster,
    /// The donor's name in the policy.
    pub(crate) cluster: &'a str,
    /// The node's id in offers.
    pub(crate) id: &'a str,
}

impl GpuNode<'_> {
    async fn object(&self) -> Result<Value> {
        object(self.donor, &self.donor.node_name()).await
    }

    async fn offered(&self) -> Result<Vec<String>> {
        let nodes = offered_nodes(self.federation, self.cluster).await?;
        Ok(nodes.into_iter().find(|(id, _)| id == self.id).map(|(_, devices)| devices).unwrap_or_default())
    }
}

/// Changes the running node's GPUs and their sharing again and again.
pub(crate) async fn each_is_offered_as_it_is(on: &GpuNode<'_>) {
    let (federation, donor) = (on.federation, on.donor);
    for Case { gpus, ghosts, devices } in cases() {
        let began = Instant::now();
        donor.set_gpus(1, &gpus).await.or_logs(federation);
        until("the offer to follow the device plugin", PATIENCE, async || {
            let (node, offered) = (on.object().await?, on.offered().await?);
            let place = format!("{offered:?} with {}", node["status"]);
            for ghost in ghosts {
                let count = |of: &str| node["status"][of][ghost].clone();
                ensure!(count("allocatable") == "0" && count("capacity") != "0", "{ghost}: {place}");
            }
            ensure!(offered == devices, "{place}");
            Ok(Some(()))
        })
        .await
        .or_logs(federation);
        println!("offered after {:.1} s: {devices:?}", began.elapsed().as_secs_f32());
    }
    a_condition_counts(on).await;
}

/// Two A100, and a condition as node-problem-detector would write it, which does not run here.
async fn a_condition_counts(on: &GpuNode<'_>) {
    let (federation, donor) = (on.federation, on.donor);
    for (status, expected) in [("True", 1), ("False", 0)] {
        let message = format!("NVRM: Xid (PCI:0000:11:00): {XID}, GPU has fallen off the bus.");
        let condition = json!({ "type": "GpuXid", "status": status, "reason": "XidFatal", "message": message });
        let patch = json!({ "status": { "conditions": [condition] } }).to_string();
        let args = ["patch", "node", &donor.node_name(), "--subresource=status", "--type=strategic", "-p", &patch];
        donor.kubectl(&args).await.or_logs(federation);
        counts_unhealthy(on, expected, 2).await;
    }
}

/// A Node object.
pub(crate) async fn object(donor: &RealCluster, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&donor.kubectl(&["get", "node", name, "-o", "json"]).await?)?)
}

/// The nodes of a cluster's offer by id, with a text for each device.
pub(crate) async fn offered_nodes(federation: &Federation, cluster: &str) -> Result<Vec<(String, Vec<String>)>> {
    let offer = federation.comity_as("admin", &["offers", cluster]).await?;
    let nodes = offer["nodeDetails"].as_array().into_iter().flatten();
    let devices = |node: &Value| node["devices"].as_array().into_iter().flatten().map(text).collect();
    Ok(nodes.map(|node| (node["id"].as_str().unwrap_or_default().to_owned(), devices(node))).collect())
}

fn text(device: &Value) -> String {
    let field = |name: &str| device[name].as_str().unwrap_or_default().to_owned();
    let unhealthy = if device["healthy"] == true { "" } else { " unhealthy" };
    let (product, resource, sharing) = (field("productName"), field("resourceName"), field("sharing"));
    format!("{product} {} MiB {resource} {sharing}{unhealthy}", device["memoryMib"])
}

/// A lease of two of four GPUs keeps a pod whose GPU failed as long as two others work, is reclaimed once only one
/// does, and stays when they work again in time.
pub(crate) async fn failures_are_counted(
    on: &GpuNode<'_>,
    lease: &str,
    started: impl AsyncFn() -> Result<String, KubectlError>,
    visible: &str,
) {
    let (federation, donor) = (on.federation, on.donor);
    let before = started().await.or_logs(federation);
    let (held, free): (Vec<u32>, Vec<u32>) =
        (0..4).partition(|gpu| visible.contains(&donor.gpu_uuid(1, usize::try_from(*gpu).unwrap_or_default())));
    assert_eq!((held.len(), free.len()), (2, 2), "{visible}");

    let began = Instant::now();
    donor.report_xid(1, held[0], XID).or_logs(federation);
    until("the node to count three GPUs", COUNTED_WITHIN, async || {
        let status = on.object().await?["status"].clone();
        let count = |of: &str| status[of]["nvidia.com/gpu"].clone();
        ensure!(count("allocatable") == "3" && count("capacity") == "4", "{status}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    println!("XID {XID}: the node counts three GPUs after {:.1} s", began.elapsed().as_secs_f32());
    counts_unhealthy(on, 1, 4).await;
    println!("XID {XID}: the broker counts one unhealthy after {:.1} s", began.elapsed().as_secs_f32());
    let kept = federation.comity(&["lease", "show", lease]).await.or_logs(federation);
    assert!(kept["state"] == "active" && kept["reclaim"].is_null(), "{kept}");
    assert_eq!(started().await.or_logs(federation), before, "the container was restarted");

    for gpu in &free {
        donor.report_xid(1, *gpu, XID).or_logs(federation);
    }
    until("the lease to be reclaimed", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", lease]).await?;
        ensure!(seen["reclaim"]["reason"] == "device-failed", "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    assert_eq!(started().await.or_logs(federation), before, "the container was restarted");
    println!("{lease} is reclaimed with one of four GPUs left, after {:.1} s", began.elapsed().as_secs_f32());

    // The device plugin takes a GPU back only when it is restarted.
    donor.set_gpus(1, &GpuBox::whole(Board::L40s, 4)).await.or_logs(federation);
    counts_unhealthy(on, 0, 4).await;
    until("the lease to stay", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", lease]).await?;
        ensure!(seen["state"] == "active" && seen["reclaim"].is_null(), "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    assert_eq!(started().await.or_logs(federation), before, "the container was restarted");
    println!("{lease} stays, {:.1} s after the first XID", began.elapsed().as_secs_f32());
}

/// A lease whose GPUs all fail moves to the donor's other node with its request. Its pod stays until the work is saved.
pub(crate) async fn a_lease_moves_off_failed_gpus(on: &GpuNode<'_>, clusters: &Arc<RealClusters>) {
    let (federation, donor) = (on.federation, on.donor);
    donor.set_gpus(2, &GpuBox::whole(Board::L40s, 4)).await.or_logs(federation);
    until("both nodes to offer their L40S", PATIENCE, async || {
        let nodes = offered_nodes(federation, on.cluster).await?;
        let offered = nodes.iter().flat_map(|(_, devices)| devices).filter(|device| device.contains("L40S")).count();
        ensure!(offered == 8, "{nodes:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    let saves = ["--preemptible", "--grace", "5m", "--checkpoint"];
    let lease = TenantLease::of(federation, clusters, 2, "midrange", &saves).await;
    lease.run(federation, "moving").await;
    let before = lease.started("moving").await.or_logs(federation);

    let began = Instant::now();
    let node = if lease.node == on.id { 1 } else { 2 };
    for gpu in 0..4 {
        donor.report_xid(node, gpu, XID).or_logs(federation);
    }
    until("the lease to be reclaimed", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", &lease.id]).await?;
        ensure!(seen["reclaim"]["reason"] == "device-failed", "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    assert_eq!(lease.started("moving").await.or_logs(federation), before, "the container was restarted");
    federation.comity(&["lease", "checkpointed", &lease.id]).await.or_logs(federation);
    let request = federation.comity(&["lease", "show", &lease.id]).await.or_logs(federation)["request"].clone();
    let next = until("the request's next lease", PATIENCE, async || {
        let list = federation.comity(&["lease", "list"]).await?;
        let is_next = |other: &&Value| other["request"] == request && other["id"] != lease.id.as_str();
        let next = list["items"].as_array().into_iter().flatten().find(is_next);
        Ok(next.and_then(|next| next["id"].as_str()).map(str::to_owned))
    })
    .await
    .or_logs(federation);
    let moved = federation.lease_in(&next, "active", PATIENCE).await.or_logs(federation);
    assert_ne!(moved["placement"]["nodes"][0]["node"], lease.node.as_str(), "{moved}");
    println!("XID {XID}: {} moved to {next} on another node, {:.1} s later", lease.id, began.elapsed().as_secs_f32());
    federation.lease_in(&lease.id, "ended", PATIENCE).await.or_logs(federation);
    federation.comity(&["lease", "release", "--yes", &next]).await.or_logs(federation);
    federation.lease_in(&next, "ended", PATIENCE).await.or_logs(federation);
    donor.set_gpus(node, &GpuBox::whole(Board::L40s, 4)).await.or_logs(federation);
}

/// Waits until the broker counts `expected` of all `total` devices as unhealthy.
async fn counts_unhealthy(on: &GpuNode<'_>, expected: usize, total: usize) {
    until(&format!("{expected} of {total} devices to be unhealthy"), PATIENCE, async || {
        let devices = on.offered().await?;
        let count = devices.iter().filter(|device| device.ends_with(" unhealthy")).count();
        ensure!((count, devices.len()) == (expected, total), "{devices:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(on.federation);
}
