#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::api::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use super::api::{ContainerResources, PodResources};
use super::*;

/// A stand-in for the kubelet, which answers each list with the next of its answers and repeats the last.
struct Kubelet(Mutex<Vec<ListPodResourcesResponse>>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers.first().cloned().unwrap_or_default() };
        Ok(Response::new(answer))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let devices = vec![devices("nvidia.com/gpu", &["GPU-a", "GPU-b"]), devices("example.com/kvm", &["kvm0"])];
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }
}

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    ContainerDevices { resource_name: resource.to_owned(), device_ids }
}

fn list(pods: &[(&str, Vec<ContainerDevices>)]) -> ListPodResourcesResponse {
    let pod = |(name, devices): &(&str, Vec<ContainerDevices>)| PodResources {
        name: (*name).to_owned(),
        namespace: "ns".to_owned(),
        containers: vec![ContainerResources { name: "work".to_owned(), devices: devices.clone() }],
    };
    ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() }
}

async fn read_from(answers: Vec<ListPodResourcesResponse>) -> NodeDevices {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
    let service = PodResourcesListerServer::new(Kubelet(Mutex::new(answers)));
    let server = tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener));
    let read = read_devices(&socket).await.unwrap();
    server.abort();
    read
}

fn unit(id: &str) -> DeviceUnit {
    DeviceUnit { resource: "nvidia.com/gpu".to_owned(), id: id.to_owned() }
}

fn pod(name: &str) -> PodName {
    PodName { namespace: "ns".to_owned(), name: name.to_owned() }
}

#[tokio::test]
async fn gpus_are_read_with_their_pods_and_other_devices_are_not() {
    let holds = vec![devices("nvidia.com/gpu", &["GPU-a"]), devices("example.com/kvm", &["kvm0"])];
    let read = read_from(vec![list(&[("one", holds), ("none", vec![devices("example.com/kvm", &["kvm1"])])])]).await;
    assert_eq!(read.offered, BTreeSet::from([unit("GPU-a"), unit("GPU-b")]));
    assert_eq!(read.held, BTreeMap::from([(pod("one"), BTreeSet::from([unit("GPU-a")]))]));
}

#[tokio::test]
async fn a_unit_that_changes_hands_is_read_again() {
    let of = |names: &[&'static str]| {
        let pods: Vec<_> = names.iter().map(|name| (*name, vec![devices("nvidia.com/gpu", &["GPU-a"])])).collect();
        list(&pods)
    };
    let read = read_from(vec![of(&["old", "new"]), of(&["new"])]).await;
    assert_eq!(read.held.keys().collect::<Vec<_>>(), [&pod("new")]);
    let both = read_from(vec![of(&["old", "new"])]).await;
    assert_eq!(both.held.len(), 2, "it stays, so it is true");
}

#[tokio::test]
async fn without_a_kubelet_the_error_names_the_socket() {
    let error = read_devices(Path::new("/nonexistent/kubelet.sock")).await.unwrap_err().to_string();
    assert!(error.contains("/nonexistent/kubelet.sock") && error.contains("No such file"), "{error}");
}

#[test]
fn a_replica_is_a_unit_of_its_device() {
    assert_eq!((unit("GPU-a::3").device(), unit("MIG-b").device()), ("GPU-a", "MIG-b"));
}
