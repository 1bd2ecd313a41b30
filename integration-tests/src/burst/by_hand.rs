//! The manual steps of an administrator of both clusters, for comparison with a burst through the broker.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use comity_testkit::Where;
use comity_testkit::real_clusters::PROBE_IMAGE;
use serde_json::json;

use super::{Burst, is_true, started};
use crate::wait::{PATIENCE, until};
use crate::watch::now_ms;

/// Namespace of the origin that is offloaded by hand.
const BY_HAND_NAMESPACE: &str = "by-hand";
/// The slice, its virtual node, and the pod on that.
const SLICE: &str = "by-hand";
/// Names that Liqo has for the two clusters.
const LIQO_ORIGIN: &str = "origin";
const LIQO_DONOR: &str = "donor";

/// Duration of each step in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ByHand {
    /// `liqoctl peer`, which makes a first virtual node.
    pub liqoctl_peer_ms: u64,
    /// From a further `ResourceSlice` written to its virtual node being ready.
    pub slice_ms: u64,
    /// From a pod created for that node to its container started on the donor.
    pub pod_ms: u64,
}

impl Burst {
    /// Peers the two clusters with `liqoctl`, writes another `ResourceSlice`, and runs a pod on its virtual node. The
    /// clusters are of no use for a federation afterwards.
    ///
    /// # Errors
    /// When liqoctl or kubectl fails, or a step takes too long.
    pub async fn by_hand(&self) -> Result<ByHand> {
        let liqoctl_peer_ms = self.liqoctl_peer().await?;
        let slice_ms = self.slice_by_hand().await?;
        self.offload_by_hand().await?;
        Ok(ByHand { liqoctl_peer_ms, slice_ms, pod_ms: self.pod_by_hand().await? })
    }

    async fn liqoctl_peer(&self) -> Result<u64> {
        let (origin, donor) =
            (self.clusters.origin.admin_kubeconfig_path(), self.clusters.donor.admin_kubeconfig_path());
        let text = |path: &Path| path.to_str().map(str::to_owned).context("paths of tests are text");
        let (origin, donor) = (text(&origin)?, text(&donor)?);
        let words = [
            &["peer", "--kubeconfig", &origin, "--remote-kubeconfig", &donor, "--skip-confirm"][..],
            &["--networking-disabled", "--resource", "nvidia.com/gpu=1", "--cpu", "1", "--memory", "1Gi"],
        ]
        .concat();
        let began = now_ms();
        let output =
            self.clusters.command_in(Where::Router, &self.binaries.program("liqoctl"), &words).output().await?;
        ensure!(output.status.success(), "liqoctl peer: {}", String::from_utf8_lossy(&output.stderr));
        Ok(now_ms().saturating_sub(began))
    }

    async fn slice_by_hand(&self) -> Result<u64> {
        let slice = json!({
            "apiVersion": "authentication.liqo.io/v1beta1", "kind": "ResourceSlice",
            "metadata": {
                "name": SLICE, "namespace": format!("liqo-tenant-{LIQO_DONOR}"),
                "labels": {
                    "liqo.io/replication": "true", "liqo.io/remoteID": LIQO_DONOR, "liqo.io/remote-cluster-id": LIQO_DONOR,
                },
                "annotations": {"liqo.io/create-virtual-node": "true"},
            },
            "spec": {
                "class": "default",
                "resources": {"cpu": "1", "memory": "1Gi", "pods": "10", "nvidia.com/gpu": "1"},
            },
        });
        let nodes = self.watch_origin(&["nodes"])?;
        let began = now_ms();
        self.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &slice.to_string()).await?;
        let ready = nodes
            .first("the virtual node to be ready", PATIENCE, |seen| {
                seen.object["metadata"]["name"] == SLICE && is_true(&seen.object, "Ready")
            })
            .await?;
        Ok(ready.at_ms.saturating_sub(began))
    }

    /// Opens a namespace to the donor and waits until it is there.
    async fn offload_by_hand(&self) -> Result<()> {
        let objects = json!({
            "apiVersion": "v1", "kind": "List", "items": [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BY_HAND_NAMESPACE}},
                {
                    "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                    "metadata": {"name": "offloading", "namespace": BY_HAND_NAMESPACE},
                    "spec": {
                        "namespaceMappingStrategy": "DefaultName", "podOffloadingStrategy": "Remote",
                        "clusterSelector": {"nodeSelectorTerms": []},
                    },
                },
            ],
        });
        let origin = &self.clusters.origin;
        origin.kubectl_with_input(&["apply", "-f", "-"], &objects.to_string()).await?;
        let phase = [
            "-n",
            BY_HAND_NAMESPACE,
            "get",
            "namespaceoffloading",
            "offloading",
            "-o",
            "jsonpath={.status.offloadingPhase}",
        ];
        until("the namespace to be offloaded", PATIENCE, async || {
            let seen = origin.kubectl(&phase).await?;
            ensure!(seen == "Ready", "it is {seen:?}");
            Ok(Some(()))
        })
        .await
    }

    async fn pod_by_hand(&self) -> Result<u64> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": SLICE, "namespace": BY_HAND_NAMESPACE},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": SLICE},
                "containers": [{
                    "name": "work", "image": PROBE_IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["see"],
                    "resources": {"limits": {"cpu": "500m", "memory": "128Mi", "nvidia.com/gpu": 1}},
                }],
            },
        });
        let pods = self.watch_origin(&["pods", "-n", BY_HAND_NAMESPACE])?;
        self.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &pod.to_string()).await?;
        let created = pods.first("the pod", PATIENCE, |_| true).await?.at_ms;
        // The donor's administrator reads the log: no path between the clusters is needed for that.
        let remote = format!("{BY_HAND_NAMESPACE}-{LIQO_ORIGIN}");
        let log = ["-n", &remote, "logs", SLICE];
        let began = until("the container to say when it started", PATIENCE, async || {
            Ok(Some(started(&self.clusters.donor.kubectl(&log).await?)?))
        })
        .await?;
        Ok(began.saturating_sub(created))
    }
}
