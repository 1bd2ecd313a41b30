//! Pods beyond their lease, and Node objects that are made again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent::metrics::Metrics;
use comity_agent::observe::kubernetes::ObserverOptions;
use comity_agent::observe::{self, Inventory, InventorySettings, LocalReserve};
use comity_agent::services::drift::{self, DRIFT_REASON, DriftContext};
use comity_agent_delivery::{DonorDelivery as _, DonorLease};
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement};
use comity_agent_model::lent::{LentLease, LentLeases, NodeMark, PodsOf};
use comity_agent_model::nodes::Nodes;
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Binding, Event, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, lease, pod, refusal};

pub(crate) const GPU: &str = "nvidia.com/gpu";
pub(crate) const GPUS_OF_LEASE: &str = "gpus.lease.comity.dev/lease-51";

/// An observer that knows one lease by namespace.
pub(crate) fn observe_with(cluster: &Cluster, lease: &DonorLease) -> (watch::Sender<LentLeases>, Inventory) {
    observe_with_options(cluster, lease, ObserverOptions::default())
}

pub(crate) fn observe_with_options(
    cluster: &Cluster,
    lease: &DonorLease,
    options: ObserverOptions,
) -> (watch::Sender<LentLeases>, Inventory) {
    let part = |(node, gpus): (&NodePlacement, u64)| {
        let amounts = BTreeMap::from([(GPU.to_owned(), gpus), ("cpu".to_owned(), node.cpu_milli)]);
        (node.node.clone(), amounts)
    };
    let lent = LentLease {
        pods: PodsOf::Namespace,
        mark: NodeMark::Resource,
        resource: GPU.to_owned(),
        is_wanted: true,
        nodes: lease.placement.units_by_node().into_iter().map(part).collect(),
    };
    let lent = watch::Sender::new(Some(Arc::new(BTreeMap::from([(lease.lease_id, lent)]))));
    let settings = InventorySettings { salt: SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let inventory = observe::kubernetes::observe_with(&cluster.agent, settings, lent.subscribe(), options);
    (lent, inventory)
}

/// Waits until a node has so many thousandths of GPUs in local use.
pub(crate) async fn local_use(nodes: &watch::Receiver<Nodes>, name: &str, milli: u32) {
    let mut nodes = nodes.clone();
    let id = SALT.node_id(name);
    let seen = nodes.wait_for(|nodes| {
        let mut nodes = nodes.iter().flat_map(|nodes| nodes.iter());
        nodes
            .any(|node| node.id == id && node.devices.iter().map(|device| device.local_use_milli).sum::<u32>() == milli)
    });
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "not seen: {milli} thousandths in use on {name}");
}

/// Binds a pod to a node past the scheduler.
pub(crate) async fn bind(pods: &Api<Pod>, name: &str, node: &str) {
    let binding = Binding {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let parameters = PostParams::default();
    pods.create_subresource::<_, serde_json::Value>("binding", name, &parameters, &binding).await.unwrap();
}

/// A pod that no scheduler places.
pub(crate) fn unscheduled(name: &str, gpus: u32) -> Pod {
    let mut pod = pod(name, GPU, gpus);
    pod.spec.as_mut().unwrap().scheduler_name = Some("nobody".to_owned());
    pod
}

pub(crate) async fn a_drifted_pod_is_local_use_and_is_evicted(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-50"));
    donor.prepare(&lease).await.unwrap();
    let (_lent, inventory) = observe_with(cluster, &lease);
    let nodes = inventory.nodes();
    let stop = CancellationToken::new();
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let context = DriftContext {
        client: cluster.agent.client(),
        differences: inventory.differences(),
        metrics: metrics.clone(),
        clock: Arc::new(SystemClock::new()),
    };
    let task = tokio::spawn(drift::run(context, stop.clone()));
    local_use(&nodes, "gpu-2", 0).await;

    let pods = Api::<Pod>::namespaced(cluster.admin(), "comity-lease-50");
    for (name, gpus, node) in [("at-home", 1, "gpu-1"), ("astray", 2, "gpu-2")] {
        pods.create(&PostParams::default(), &unscheduled(name, gpus)).await.unwrap();
        bind(&pods, name, node).await;
    }
    local_use(&nodes, "gpu-2", 2_000).await;
    local_use(&nodes, "gpu-1", 0).await;
    let events = Api::<Event>::namespaced(cluster.admin(), "comity-lease-50");
    eventually("the pod is evicted", || async { pods.get_opt("astray").await.unwrap().is_none() }).await;
    let told = events.list(&ListParams::default().fields(&format!("reason={DRIFT_REASON}"))).await.unwrap();
    let texts: Vec<&str> = told.items.iter().filter_map(|event| event.message.as_deref()).collect();
    assert!(texts.len() == 1 && texts[0].starts_with("lease-50 may use 0 nvidia.com/gpu on node gpu-2"), "{texts:?}");
    assert_eq!(told.items[0].type_.as_deref(), Some("Warning"));
    local_use(&nodes, "gpu-2", 0).await;
    assert!(pods.get("at-home").await.unwrap().metadata.deletion_timestamp.is_none());
    assert_eq!(metrics.drift_corrections.with_label_values(&["evicted"]).get(), 1);
    stop.cancel();
    task.await.unwrap();
    donor.remove(LeaseId(50)).await.unwrap();
}

/// Two GPUs of gpu-1 and one of gpu-2.
pub(crate) fn on_two_nodes() -> DonorLease {
    let mut lease = lease("lease-51");
    let part = |name: &str, devices: u32| NodePlacement {
        node: SALT.node_id(name),
        devices: (0..devices).map(|device| DeviceShare { device, milli: 1_000, ..DeviceShare::default() }).collect(),
        ..lease.placement.nodes[0].clone()
    };
    lease.placement.nodes = vec![part("gpu-1", 2), part("gpu-2", 1)];
    lease
}

pub(crate) async fn no_node_runs_more_of_a_lease_than_was_placed_there(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), on_two_nodes());
    donor.prepare(&lease).await.unwrap();
    let tenant = cluster.tenant(&donor.credential(&lease).await.unwrap());
    let pods = Api::<Pod>::default_namespaced(tenant);
    let create = PostParams::default();
    let counted = |name: &str, gpus: u32, count: u32| {
        let mut pod = pod(name, GPU, gpus);
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        resources.limits.as_mut().unwrap().insert(GPUS_OF_LEASE.to_owned(), Quantity(count.to_string()));
        pod
    };
    for wrong in [pod("uncounted", GPU, 1), counted("fewer", 2, 1), counted("more", 1, 2), counted("none", 0, 1)] {
        let (code, message) = refusal(pods.create(&create, &wrong).await);
        assert!(
            (code == 403 || code == 422) && message.contains("requests as many gpus.lease.comity.dev"),
            "{message}"
        );
    }
    // Three pods of one GPU each: gpu-2 has one of them, although it has eight free GPUs.
    for name in ["one", "two", "three"] {
        pods.create(&create, &counted(name, 1, 1)).await.unwrap();
    }
    let node_of = async |name: &str| pods.get(name).await.unwrap().spec.unwrap().node_name;
    let mut nodes = BTreeMap::new();
    for name in ["one", "two", "three"] {
        eventually("the pod is placed", || async { node_of(name).await.is_some() }).await;
        *nodes.entry(node_of(name).await.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(nodes, BTreeMap::from([("gpu-1".to_owned(), 2), ("gpu-2".to_owned(), 1)]));
    // Pods without GPUs need no count.
    pods.create(&create, &pod("helper", "cpu", 1)).await.unwrap();
    donor.remove(LeaseId(51)).await.unwrap();
}

pub(crate) async fn a_node_that_is_made_again_gets_its_marks(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), on_two_nodes());
    donor.prepare(&lease).await.unwrap();
    let (_lent, inventory) = observe_with(cluster, &lease);
    let mut differences = inventory.differences();
    local_use(&inventory.nodes(), "gpu-2", 0).await;
    let nodes = Api::<Node>::all(cluster.admin());
    let gpus = async |name: &str| {
        let capacity = nodes.get(name).await.unwrap().status.unwrap().capacity.unwrap();
        capacity.get(GPUS_OF_LEASE).map(|amount| amount.0.clone())
    };
    assert_eq!((gpus("gpu-1").await.as_deref(), gpus("gpu-2").await.as_deref()), (Some("2"), Some("1")));
    assert!(differences.borrow_and_update().unmarked.is_empty());

    let before = nodes.get("gpu-2").await.unwrap();
    nodes.delete("gpu-2", &DeleteParams::default()).await.unwrap();
    eventually("the Node is gone", || async { nodes.get_opt("gpu-2").await.unwrap().is_none() }).await;
    let (labels, annotations) = (before.metadata.labels.clone(), before.metadata.annotations.clone());
    let metadata = ObjectMeta { name: before.metadata.name.clone(), labels, annotations, ..ObjectMeta::default() };
    nodes.create(&PostParams::default(), &Node { metadata, ..Node::default() }).await.unwrap();
    let mut status = before.status.unwrap();
    for amounts in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
        amounts.retain(|name, _| !name.contains("lease.comity.dev/"));
    }
    nodes.patch_status("gpu-2", &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await.unwrap();
    let seen = differences.wait_for(|differences| differences.unmarked == BTreeSet::from([LeaseId(51)]));
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok_and(|seen| seen.is_ok()), "the loss is not seen");

    // The plan's step `reopen-lease` does this.
    donor.reopen(&lease).await.unwrap();
    assert_eq!(gpus("gpu-2").await.as_deref(), Some("1"));
    let whole = differences.wait_for(|differences| differences.unmarked.is_empty());
    assert!(tokio::time::timeout(PATIENCE, whole).await.is_ok_and(|seen| seen.is_ok()), "the marks are not seen");
    donor.remove(LeaseId(51)).await.unwrap();
    assert_eq!((gpus("gpu-1").await, gpus("gpu-2").await), (None, None));
}
