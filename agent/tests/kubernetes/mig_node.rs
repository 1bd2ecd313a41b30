//! A node with two H100 in MIG mode on a real API server. A task stands in for NVIDIA's MIG manager, device plugin and
//! GPU Feature Discovery: it follows label and ConfigMap, and changes the node's labels and capacity as they do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comity_testkit::MigLayouts;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

pub(crate) const NODE: &str = "mig-1";
pub(crate) const CONFIG: &str = "nvidia.com/mig.config";
pub(crate) const BEFORE: &str = "comity.dev/mig-config-before";
pub(crate) const NAMESPACE: &str = "gpu-operator";
pub(crate) const CONFIG_MAP: &str = "mig-parted-config";
/// The owner's configurations.
pub(crate) const OWNERS: &str = r#"# ours
version: v1
mig-configs:
  halves:
    - devices: all
      mig-enabled: true
      mig-devices:
        "3g.40gb": 2
  all-disabled:
    - devices: all
      mig-enabled: false
"#;
const GPUS: usize = 2;

/// Makes the node, the ConfigMap and the agent's rights.
pub(crate) async fn create(cluster: &Cluster) {
    let plane = cluster.plane();
    plane.kubectl(&["create", "namespace", NAMESPACE]).await.unwrap();
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "config.yaml": OWNERS },
        "metadata": { "name": CONFIG_MAP, "namespace": NAMESPACE } });
    let labels = json!({
        "comity.dev/mig": "true", "kubernetes.io/hostname": NODE, "type": "kwok",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "2", "nvidia.com/gpu.family": "hopper", "nvidia.com/gpu.replicas": "0", "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.capable": "true", CONFIG: "halves",
    });
    let amounts = json!({ "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1000Gi", "pods": "110" });
    let node = json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": NODE, "labels": labels, "annotations": { "kwok.x-k8s.io/node": "fake" } },
        "status": { "capacity": amounts, "allocatable": amounts } });
    for object in [map.to_string(), node.to_string(), include_str!("../../../deploy/agent/mig.yaml").to_owned()] {
        plane.kubectl_with_input(&["apply", "-f", "-"], &object).await.unwrap();
    }
}

/// The node as it is now.
pub(crate) async fn node(client: &Client) -> Node {
    Api::<Node>::all(client.clone()).get(NODE).await.unwrap()
}

/// The text of the configurations.
pub(crate) async fn text(client: &Client) -> String {
    let map = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).get(CONFIG_MAP).await.unwrap();
    map.data.unwrap()["config.yaml"].clone()
}

/// The stand-in; ends when dropped.
pub(crate) struct MigManager {
    task: JoinHandle<()>,
    fails: Arc<AtomicBool>,
}

impl MigManager {
    pub(crate) fn start(client: Client) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(run(client, Arc::clone(&fails)));
        Self { task, fails }
    }

    /// Whether it fails every change to a configuration of the agent from now on.
    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }
}

impl Drop for MigManager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(client: Client, fails: Arc<AtomicBool>) {
    let mut applied = String::new();
    let mut layouts = MigLayouts(vec![None; GPUS]);
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let wanted = node(&client).await.labels().get(CONFIG).cloned().unwrap_or_default();
        if wanted == applied {
            continue;
        }
        set_state(&client, "pending").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let next = MigLayouts::read(&text(&client).await, &wanted, GPUS);
        let is_refused = fails.load(Ordering::SeqCst) && wanted.starts_with("comity-");
        match next.filter_in_use(&layouts, &used_profiles(&client).await) {
            Some(next) if !is_refused => {
                // The device plugin is quicker than GPU Feature Discovery here, and the state comes before both.
                set_state(&client, "success").await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                set_counts(&client, &layouts, &next).await;
                layouts = next;
            }
            _ => set_state(&client, "failed").await,
        }
        applied = wanted;
    }
}

trait FilterInUse {
    fn filter_in_use(self, now: &MigLayouts, used: &[String]) -> Option<MigLayouts>;
}

impl FilterInUse for Result<MigLayouts, String> {
    /// No device that changes may be in use.
    fn filter_in_use(self, now: &MigLayouts, used: &[String]) -> Option<MigLayouts> {
        self.ok().filter(|next| now.cleared(next).iter().all(|profile| !used.contains(profile)))
    }
}

/// Profiles that pods of the node hold.
async fn used_profiles(client: &Client) -> Vec<String> {
    let on_node = ListParams::default().fields(&format!("spec.nodeName={NODE}"));
    let pods = Api::<Pod>::all(client.clone()).list(&on_node).await.unwrap();
    let containers = pods.items.into_iter().filter_map(|pod| pod.spec).flat_map(|spec| spec.containers);
    let limits = containers.filter_map(|container| container.resources?.limits).flat_map(BTreeMap::into_keys);
    limits.filter_map(|name| name.strip_prefix("nvidia.com/mig-").map(str::to_owned)).collect()
}

async fn set_state(client: &Client, state: &str) {
    let patch = json!({ "metadata": { "labels": { "nvidia.com/mig.config.state": state } } });
    Api::<Node>::all(client.clone()).patch(NODE, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// Names that are no longer served stay at their capacity, with nothing allocatable, as a kubelet keeps them.
async fn set_counts(client: &Client, before: &MigLayouts, next: &MigLayouts) {
    let next = next.resources();
    let gone = before.resources().into_keys().filter(|name| !next.contains_key(name)).map(|name| (name, 0));
    let allocatable: BTreeMap<String, String> =
        next.clone().into_iter().chain(gone).map(|(name, count)| (name, count.to_string())).collect();
    let capacity: BTreeMap<String, String> = next.into_iter().map(|(name, count)| (name, count.to_string())).collect();
    let patch = json!({ "status": { "capacity": capacity, "allocatable": allocatable } });
    let nodes = Api::<Node>::all(client.clone());
    nodes.patch_status(NODE, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}
