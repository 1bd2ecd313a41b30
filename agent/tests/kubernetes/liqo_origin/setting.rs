//! Clients of both clusters, and the agent's.

use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use comity_testkit::RealClusters;
use comity_testkit::real_clusters::PROBE_IMAGE;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

const MANIFESTS: [&str; 4] = [
    include_str!("../../../../deploy/agent/rbac.yaml"),
    include_str!("../../../../deploy/agent/tenant-role.yaml"),
    include_str!("../../../../deploy/agent/admission.yaml"),
    include_str!("../../../../deploy/agent/liqo-origin.yaml"),
];

pub(crate) struct Setting {
    /// The origin's API with every right.
    pub(crate) origin: Client,
    /// The donor's API with every right.
    pub(crate) donor: Client,
    /// The origin's API as the agent's ServiceAccount.
    pub(crate) agent: Client,
}

impl Setting {
    pub(crate) async fn of(clusters: &RealClusters) -> Self {
        for manifest in MANIFESTS {
            clusters.origin.kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
        }
        for (namespace, tenant) in [("team-a", "vision"), ("team-b", "speech")] {
            clusters.origin.kubectl(&["create", "namespace", namespace]).await.unwrap();
            let labels = [&format!("comity.dev/tenant={tenant}"), "comity.dev/offload=true"];
            clusters.origin.kubectl(&["label", "namespace", namespace, labels[0], labels[1]]).await.unwrap();
        }
        let create = ["create", "token", "comity-agent", "-n", "comity-system", "--duration=1h"];
        let token = clusters.origin.kubectl(&create).await.unwrap();
        let agent = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "agent",
            "clusters": [{ "name": "c", "cluster": { "server": clusters.origin.server_url(), "certificate-authority": clusters.origin.ca_path() } }],
            "users": [{ "name": "agent", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "agent", "context": { "cluster": "c", "user": "agent" } }],
        });
        Self {
            origin: client(Kubeconfig::read_from(clusters.origin.admin_kubeconfig_path()).unwrap()).await,
            donor: client(Kubeconfig::read_from(clusters.donor.admin_kubeconfig_path()).unwrap()).await,
            agent: client(serde_json::from_value(agent).unwrap()).await,
        }
    }

    /// Records from now on when a pod and its node change readiness, and who reported it.
    pub(crate) fn follow_ready(&self, pod: &str, node: &str) -> History {
        let (lines, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let pods = Api::<Pod>::namespaced(self.origin.clone(), "team-a");
        let nodes = Api::<Node>::all(self.origin.clone());
        let (pod, node, kept) = (pod.to_owned(), node.to_owned(), Arc::clone(&lines));
        let task = tokio::spawn(async move {
            let mut pod_events = pin!(watch_object(pods, &pod));
            let mut node_events = pin!(watch_object(nodes, &node));
            loop {
                let line = tokio::select! {
                    Some(Ok(Some(pod))) = pod_events.next() => format!("pod {} {:?}", pod_is_ready(&pod), last_writer(&pod)),
                    Some(Ok(Some(node))) = node_events.next() => format!("node {} {:?}", node_status(&node), last_writer(&node)),
                    else => return,
                };
                kept.lock().unwrap().push(format!("{:?} {line}", began.elapsed()));
            }
        });
        History { lines, task: task.abort_handle() }
    }

    /// The container that the donor runs for a pod.
    pub(crate) async fn container_of(&self, pod: &str) -> String {
        let pod = Api::<Pod>::namespaced(self.donor.clone(), "team-a-origin").get(pod).await.unwrap();
        let container = &pod.status.unwrap().container_statuses.unwrap()[0];
        format!("{:?} {}", container.container_id, container.restart_count)
    }
}

/// The record of [`Setting::follow_ready`]; dropping it ends the recording.
pub(crate) struct History {
    lines: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl History {
    pub(crate) fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The last writer of an object, and its labels.
fn last_writer<K: kube::Resource>(object: &K) -> String {
    let managers = object.meta().managed_fields.as_deref().unwrap_or_default();
    let last = managers.iter().max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    format!("{:?} {:?}", last.and_then(|entry| entry.manager.as_deref()), object.labels())
}

async fn client(kubeconfig: Kubeconfig) -> Client {
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Moves the calling thread, and its new sockets, into the network of a process.
pub(crate) fn enter_network(pid: u32) {
    let network = std::fs::File::open(Path::new("/proc").join(pid.to_string()).join("ns/net")).unwrap();
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), Some(kind)).unwrap();
}

/// A pod for one GPU of a lease, with the fields that a burst adds.
pub(crate) fn gpu_pod(lease: &str, arguments: &[&str]) -> Value {
    let mut container = json!({
        "name": "work", "image": PROBE_IMAGE, "imagePullPolicy": "IfNotPresent",
        "resources": { "limits": { "nvidia.com/gpu": "1" } },
    });
    if !arguments.is_empty() {
        container["args"] = json!(arguments);
    }
    json!({
        "restartPolicy": "Never",
        "nodeSelector": { "comity.dev/lease": lease },
        "tolerations": [
            { "key": "virtual-node.liqo.io/not-allowed", "operator": "Exists", "effect": "NoExecute" },
            { "key": "comity.dev/lease", "operator": "Equal", "value": lease, "effect": "NoSchedule" },
        ],
        "containers": [container],
    })
}

pub(crate) fn node_status(node: &Node) -> String {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.status).unwrap_or_default()
}

pub(crate) fn pod_is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Retries until the condition holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(90), "still not so after {:?}: {what}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
