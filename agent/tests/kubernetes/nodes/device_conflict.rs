//! A device that a pod of a lease and one of the donor's own hold at once, as a stand-in for the kubelet reports it to a
//! device reader with the rights of `deploy/agent/devices.yaml`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use comity_agent::metrics::Metrics;
use comity_agent::observe::kubernetes::{DeviceReaders, ObserverOptions};
use comity_agent::services::device_conflicts::{self, CONFLICT_REASON, ConflictContext};
use comity_agent::services::device_reader::{self, DEVICE_READERS_AUDIENCE, DeviceReader};
use comity_agent_delivery::DonorDelivery as _;
use comity_agent_kubernetes::pod_resources::api::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use comity_agent_kubernetes::pod_resources::api::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use comity_agent_model::nodes::Nodes;
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, lease};
use crate::drift::{GPU, bind, observe_with_options, unscheduled};

const NODE: &str = "gpu-1";
const NAMESPACE: &str = "comity-lease-54";
const OWN_POD: &str = "own-device";
const MANIFEST: &str = include_str!("../../../../deploy/agent/devices.yaml");

/// The pods of a node, with their namespaces and devices.
type Held = Vec<PodResources>;

/// The stand-in for the kubelet.
#[derive(Clone, Default)]
struct Kubelet(Arc<Mutex<Held>>);

impl Kubelet {
    fn set(&self, held: Held) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn serve(&self, socket: &Path) {
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let service = PodResourcesListerServer::new(self.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener));
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let ids = (0..8).map(|number| format!("GPU-{number}"));
        let devices = vec![ContainerDevices { resource_name: GPU.to_owned(), device_ids: ids.collect() }];
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }
}

fn holds(namespace: &str, name: &str, device: &str) -> PodResources {
    let devices = vec![ContainerDevices { resource_name: GPU.to_owned(), device_ids: vec![device.to_owned()] }];
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![ContainerResources { name: "work".to_owned(), devices }],
    }
}

async fn lends(nodes: &watch::Receiver<Nodes>, expected: bool) {
    let (mut nodes, id) = (nodes.clone(), SALT.node_id(NODE));
    let seen = nodes.wait_for(|nodes| {
        nodes.iter().flat_map(|nodes| nodes.iter()).any(|node| node.id == id && node.schedulable == expected)
    });
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "{NODE} should lend: {expected}");
}

/// Applies the manifest, but for the pods: no kubelet runs them here.
async fn apply_manifest(cluster: &Cluster) {
    let (pods, others): (Vec<&str>, Vec<&str>) =
        MANIFEST.split("\n---\n").partition(|document| document.contains("kind: DaemonSet"));
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &others.join("\n---\n")).await.unwrap();
    let answer = cluster.plane().kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], pods[0]).await.unwrap();
    assert!(answer.contains("device-reader"), "{answer}");
}

pub(crate) async fn a_device_conflict_is_reported_and_its_node_lends_nothing(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-54"));
    donor.prepare(&lease).await.unwrap();
    let lent = Api::<Pod>::namespaced(cluster.admin(), NAMESPACE);
    let own = Api::<Pod>::namespaced(cluster.admin(), "default");
    for (pods, name) in [(&lent, "train"), (&own, OWN_POD)] {
        pods.create(&PostParams::default(), &unscheduled(name, 1)).await.unwrap();
        bind(pods, name, NODE).await;
    }
    let (folder, kubelet, stop) = (tempfile::tempdir().unwrap(), Kubelet::default(), CancellationToken::new());
    let socket = folder.path().join("kubelet.sock");
    kubelet.set(vec![holds(NAMESPACE, "train", "GPU-0"), holds("default", OWN_POD, "GPU-0")]);
    kubelet.serve(&socket);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = ([127, 0, 0, 1], port).into();
    apply_manifest(cluster).await;
    let agent_user = "system:serviceaccount:comity-system:comity-agent".to_owned();
    let reader = DeviceReader { node: NODE.to_owned(), socket, agent_user };
    let reviewer = cluster.connect_as("comity-devices", "device-reader").await.client();
    let reading = tokio::spawn(device_reader::serve(reader, reviewer, listen, stop.clone()));
    eventually("the reader listens", || async { tokio::net::TcpStream::connect(listen).await.is_ok() }).await;

    let endpoint = format!("http://{listen}/metrics").parse().unwrap();
    // The agent's token for the API server is not for readers.
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, cluster.token("comity-system", "comity-agent", None).await).unwrap();
    let readers = Some(DeviceReaders { endpoint, token_file: token_file.clone(), clock: Arc::new(SystemClock::new()) });
    let (_lent, inventory) =
        observe_with_options(cluster, &lease, ObserverOptions { readers, ..ObserverOptions::default() });
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let context =
        ConflictContext { client: cluster.agent.client(), devices: inventory.devices(), metrics: metrics.clone() };
    let reporting = tokio::spawn(device_conflicts::run(context, stop.clone()));
    let readers = |label: &str| metrics.device_readers.with_label_values(&[label]).get();
    eventually("the reader refuses the agent", || async { readers("failed") == 1 && readers("read") == 0 }).await;
    let token = cluster.token("comity-system", "comity-agent", Some(DEVICE_READERS_AUDIENCE)).await;
    std::fs::write(&token_file, token).unwrap();
    lends(&inventory.nodes(), false).await;
    let count = |label: &str| metrics.devices.with_label_values(&[label]).get();
    eventually("the metrics count it", || async { count("conflict") == 1 && count("free") == 7 }).await;
    let events = Api::<Event>::namespaced(cluster.admin(), NAMESPACE);
    let of_reason = ListParams::default().fields(&format!("reason={CONFLICT_REASON}"));
    eventually("an event tells it", || async { events.list(&of_reason).await.unwrap().items.len() == 1 }).await;

    kubelet.set(vec![holds(NAMESPACE, "train", "GPU-0"), holds("default", OWN_POD, "GPU-1")]);
    lends(&inventory.nodes(), true).await;
    eventually("the metrics follow", || async { count("conflict") == 0 && count("lent") == 1 }).await;
    stop.cancel();
    reading.await.unwrap().unwrap();
    reporting.await.unwrap();
    own.delete(OWN_POD, &DeleteParams::default().grace_period(0)).await.unwrap();
    donor.remove(LeaseId(54)).await.unwrap();
}
