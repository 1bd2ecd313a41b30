//! Canaries on a real API server; the test plays the kubelets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent::config::{CanarySettings, NetworkPolicies};
use comity_agent::observe::{self, InventorySettings, LocalReserve};
use comity_agent::services::canary::{self, CANARY_NAMESPACE, CanaryContext, CanaryResults, Unproved};
use comity_agent_model::nodes::Nodes;
use comity_runtime::SystemClock;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, refusal};

/// A running task, and what it publishes.
struct RunningCanary {
    nodes: watch::Receiver<Nodes>,
    unproved: watch::Receiver<Unproved>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningCanary {
    fn start(cluster: &Cluster, inventory: watch::Receiver<Nodes>) -> Self {
        Self::start_with(cluster, inventory, None, NetworkPolicies::Required)
    }

    /// With the RuntimeClass of guests' pods.
    fn start_with(
        cluster: &Cluster,
        inventory: watch::Receiver<Nodes>,
        runtime_class: Option<&str>,
        network_policies: NetworkPolicies,
    ) -> Self {
        let (offered, unproved) = (watch::Sender::default(), watch::Sender::default());
        let (nodes, reasons) = (offered.subscribe(), unproved.subscribe());
        let context = CanaryContext {
            client: cluster.agent.client(),
            settings: CanarySettings {
                image: "example.invalid/canary:1".to_owned(),
                network_policies,
                ..CanarySettings::default()
            },
            runtime_class: runtime_class.map(str::to_owned),
            salt: SALT,
            nodes: inventory,
            clock: Arc::new(SystemClock::new()),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(canary::run(context, CanaryResults { offered, unproved }, stop.clone()));
        Self { nodes, unproved: reasons, stop, task }
    }

    /// Waits until exactly these nodes are lent.
    async fn lends(&self, names: &[&str]) {
        let wanted: BTreeSet<String> = names.iter().map(|name| SALT.node_id(name)).collect();
        let mut nodes = self.nodes.clone();
        let lends = |nodes: &Nodes| {
            let nodes = nodes.iter().flat_map(|nodes| nodes.iter());
            let lent: BTreeSet<String> = nodes.filter(|node| node.schedulable).map(|node| node.id.clone()).collect();
            lent == wanted
        };
        let seen = tokio::time::timeout(PATIENCE, nodes.wait_for(|nodes| nodes.is_some() && lends(nodes))).await;
        assert!(seen.is_ok_and(|seen| seen.is_ok()), "not just {names:?}, but {:?}", self.unproved.borrow());
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// A node, and a role of its canaries.
type Place = (String, String);

fn place(node: &str, role: &str) -> Place {
    (node.to_owned(), role.to_owned())
}

/// The canaries by node and role, each with its uid and its name.
async fn canaries(pods: &Api<Pod>) -> BTreeMap<Place, (String, String)> {
    let all = pods.list(&ListParams::default()).await.unwrap().items.into_iter();
    let living = all.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let at = |pod: &Pod| place(&pod.annotations()["comity.dev/canary-node"], &pod.labels()["comity.dev/canary"]);
    living.map(|pod| (at(&pod), (pod.uid().unwrap(), pod.name_any()))).collect()
}

/// Ends both canaries of a node: no GPU is seen, and NetworkPolicies are enforced.
async fn prove(pods: &Api<Pod>, node: &str) {
    finish(pods, &place(node, "control"), 3, "").await;
    finish(pods, &place(node, "restricted"), 0, "").await;
}

/// Ends a canary that runs, as the kubelet of its node would.
async fn finish(pods: &Api<Pod>, at: &Place, exit_code: i32, message: &str) {
    let running = async || {
        let name = canaries(pods).await.get(at)?.1.clone();
        let pod = pods.get_opt(&name).await.unwrap()?;
        assert_eq!(pod.spec.as_ref().unwrap().node_name.as_ref().unwrap_or(&at.0), &at.0);
        (pod.status?.phase.as_deref() == Some("Running")).then_some(name)
    };
    eventually("the canary runs", || async { running().await.is_some() }).await;
    // Both canaries of a node began with it.
    let began = Api::<Node>::all(pods.clone().into_client()).get(&at.0).await.unwrap();
    let (began, now) = (began.metadata.creation_timestamp.unwrap().0.to_string(), Timestamp::now().to_string());
    let terminated = json!({ "exitCode": exit_code, "message": message, "startedAt": began, "finishedAt": now });
    let container = json!({
        "name": "canary", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": terminated },
    });
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    let status = Patch::Merge(json!({ "status": { "phase": phase, "containerStatuses": [container] } }));
    pods.patch_status(&running().await.unwrap(), &PatchParams::default(), &status).await.unwrap();
}

/// Without the NetworkPolicy that is to be enforced, no canary is made, and the reason names the file.
async fn the_policy_is_needed(cluster: &Cluster, inventory: watch::Receiver<Nodes>, pods: &Api<Pod>) {
    let policies = Api::<NetworkPolicy>::namespaced(cluster.admin(), CANARY_NAMESPACE.name);
    let mut policy = policies.get("restricted").await.unwrap();
    policies.delete("restricted", &DeleteParams::default()).await.unwrap();
    let running = RunningCanary::start(cluster, inventory);
    let missing = "NetworkPolicy comity-canary/restricted is missing; apply deploy/agent/canary.yaml";
    let mut unproved = running.unproved.clone();
    let told = unproved.wait_for(|all| all.get("gpu-1").is_some_and(|reason| reason.contains(missing)));
    tokio::time::timeout(PATIENCE, told).await.expect("no reason").unwrap();
    assert!(canaries(pods).await.is_empty());
    running.stop().await;
    policy.metadata = ObjectMeta { name: policy.metadata.name.take(), ..ObjectMeta::default() };
    policies.create(&PostParams::default(), &policy).await.unwrap();

    let own = Api::<NetworkPolicy>::namespaced(cluster.agent.client(), CANARY_NAMESPACE.name);
    let opened = Patch::Merge(json!({ "spec": { "egress": [{}] } }));
    let (_, message) = refusal(own.patch("restricted", &PatchParams::default(), &opened).await);
    assert!(message.contains("only objects in the namespaces of leases"), "{message}");
}

pub(crate) async fn a_node_lends_once_its_canaries_found_nothing(cluster: &Cluster) {
    let settings = InventorySettings { salt: SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let inventory = observe::kubernetes::observe(&cluster.agent, settings, observe::no_leases());
    let pods = Api::<Pod>::namespaced(cluster.admin(), CANARY_NAMESPACE.name);
    the_policy_is_needed(cluster, inventory.nodes(), &pods).await;
    let running = RunningCanary::start_with(cluster, inventory.nodes(), Some("kata"), NetworkPolicies::Required);
    let not_found = "RuntimeClass \"kata\" not found";
    let mut unproved = running.unproved.clone();
    let refused = unproved.wait_for(|all| all.get("gpu-1").is_some_and(|reason| reason.contains(not_found)));
    tokio::time::timeout(PATIENCE, refused).await.expect("no reason").unwrap();
    running.stop().await;

    let running = RunningCanary::start(cluster, inventory.nodes());
    running.lends(&[]).await;
    prove(&pods, "gpu-1").await;
    running.lends(&["gpu-1"]).await;
    finish(&pods, &place("gpu-2", "restricted"), 1, "/dev/nvidia0\n").await;
    let mut unproved = running.unproved.clone();
    let exposed = unproved.wait_for(|all| all.get("gpu-2").is_some_and(|reason| reason.contains("sees /dev/nvidia0")));
    tokio::time::timeout(PATIENCE, exposed).await.expect("no reason").unwrap();
    running.lends(&["gpu-1"]).await;
    let before = canaries(&pods).await;
    assert!(!before.contains_key(&place("cpu-1", "control")), "nodes without GPUs need none");
    running.stop().await;

    // The pods are the record.
    let running = RunningCanary::start(cluster, inventory.nodes());
    running.lends(&["gpu-1"]).await;
    assert_eq!(canaries(&pods).await, before);

    let nodes = Api::<Node>::all(cluster.admin());
    let rebooted = Patch::Merge(json!({ "status": { "nodeInfo": { "bootID": "second" } } }));
    nodes.patch_status("gpu-1", &PatchParams::default(), &rebooted).await.unwrap();
    running.lends(&[]).await;
    let restricted = place("gpu-1", "restricted");
    eventually("another canary replaces the first", || async {
        canaries(&pods).await.get(&restricted).is_some_and(|now| *now != before[&restricted])
    })
    .await;
    // A pod that a NetworkPolicy denies everything connects.
    finish(&pods, &place("gpu-1", "control"), 3, "").await;
    finish(&pods, &restricted, 3, "connected to 10.96.0.1 port 443").await;
    let mut unproved = running.unproved.clone();
    let open = unproved
        .wait_for(|all| all.get("gpu-1").is_some_and(|reason| reason.contains("the CNI enforces no NetworkPolicies")));
    tokio::time::timeout(PATIENCE, open).await.expect("no reason").unwrap();
    running.lends(&[]).await;
    running.stop().await;
    // Its owner accepts that.
    let running = RunningCanary::start_with(cluster, inventory.nodes(), None, NetworkPolicies::NotEnforced);
    running.lends(&["gpu-1"]).await;
    running.stop().await;
    only_canaries_are_admitted(cluster, &pods.get(&canaries(&pods).await[&restricted].1).await.unwrap()).await;
    CANARY_NAMESPACE.clear(cluster.agent.client()).await;
    eventually("no canary is left", || async { pods.list(&ListParams::default()).await.unwrap().items.is_empty() })
        .await;
}

/// Somebody who controls the agent gets no pods of his choice.
async fn only_canaries_are_admitted(cluster: &Cluster, canary: &Pod) {
    let own = Api::<Pod>::namespaced(cluster.agent.client(), CANARY_NAMESPACE.name);
    let changed = |pointer: &str, value: serde_json::Value| -> Pod {
        let mut pod = serde_json::to_value(canary).unwrap();
        let (annotations, labels) = (pod["metadata"]["annotations"].clone(), pod["metadata"]["labels"].clone());
        pod["metadata"] = json!({ "name": "chosen", "annotations": annotations, "labels": labels });
        pod["spec"]["nodeName"] = json!(null);
        pod["status"] = json!(null);
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        serde_json::from_value(pod).unwrap()
    };
    for (pointer, value, refused) in [
        ("/spec/containers/0/command", json!(["mine"]), "its image's own command"),
        ("/spec/containers/0/env", json!([{ "name": "A", "value": "b" }]), "its image's own command"),
        ("/spec/containers/0/resources", json!({ "limits": { "nvidia.com/gpu": "1" } }), "asks for no device"),
        ("/spec/volumes", json!([{ "name": "a", "emptyDir": {} }]), "no volumes"),
        ("/spec/activeDeadlineSeconds", json!(3600), "at most five minutes"),
        ("/metadata/annotations", json!({}), "names the node"),
        ("/metadata/labels", json!({ "comity.dev/canary": "free" }), "is a control, or restricted"),
    ] {
        let (_, message) = refusal(own.create(&PostParams::default(), &changed(pointer, value)).await);
        assert!(message.contains(refused), "{pointer}: {message}");
    }
}
