#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comity_agent_kubernetes::pod_resources::api::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use comity_agent_kubernetes::pod_resources::api::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ListPodResourcesRequest,
    ListPodResourcesResponse,
};
use futures::future::join_all;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tower::service_fn;

use super::*;

const AGENTS_ACCOUNT: &str = "system:serviceaccount:comity-system:comity-agent";
/// For a machine with other work.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// A stand-in for the kubelet, which counts its calls.
#[derive(Clone, Default)]
struct CountingKubelet(Arc<AtomicUsize>);

#[tonic::async_trait]
impl PodResourcesLister for CountingKubelet {
    async fn list(
        &self,
        _: tonic::Request<ListPodResourcesRequest>,
    ) -> Result<tonic::Response<ListPodResourcesResponse>, tonic::Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(tonic::Response::new(ListPodResourcesResponse::default()))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<AllocatableResourcesResponse>, tonic::Status> {
        let devices = ContainerDevices { resource_name: "nvidia.com/gpu".to_owned(), device_ids: vec!["GPU-0".into()] };
        Ok(tonic::Response::new(AllocatableResourcesResponse { devices: vec![devices] }))
    }
}

/// A stand-in for the API server: tokens are "USER for AUDIENCE". Counts reviews.
fn api_server(reviews: Arc<AtomicUsize>) -> kube::Client {
    let answer = move |request: http::Request<Body>| {
        let reviews = Arc::clone(&reviews);
        async move {
            assert_eq!(request.uri().path(), "/apis/authentication.k8s.io/v1/tokenreviews");
            reviews.fetch_add(1, Ordering::SeqCst);
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let asked = review["spec"]["audiences"][0].clone();
            let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
            review["status"] = match token.split_once("-for-") {
                Some((user, audience)) if audience == asked => {
                    json!({ "authenticated": true, "user": { "username": user }, "audiences": [asked] })
                }
                // As an authenticator that knows no audiences.
                Some((user, "anybody")) => json!({ "authenticated": true, "user": { "username": user } }),
                _ => json!({ "error": "invalid" }),
            };
            Ok::<_, std::io::Error>(http::Response::new(Body::from(review.to_string().into_bytes())))
        }
    };
    kube::Client::new(service_fn(answer), "default")
}

fn agents_token() -> String {
    format!("{AGENTS_ACCOUNT}-for-{DEVICE_READERS_AUDIENCE}")
}

/// A running reader.
struct RunningReader {
    address: SocketAddr,
    kubelet: CountingKubelet,
    reviews: Arc<AtomicUsize>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl RunningReader {
    async fn start() -> Self {
        let (folder, kubelet, reviews) = (tempfile::tempdir().unwrap(), CountingKubelet::default(), Arc::default());
        let socket = folder.path().join("kubelet.sock");
        serve_kubelet(&socket, kubelet.clone());
        let (stop, client) = (CancellationToken::new(), api_server(Arc::clone(&reviews)));
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let reader = DeviceReader { node: "gpu-1".to_owned(), socket, agent_user: AGENTS_ACCOUNT.to_owned() };
        tokio::spawn(serve(reader, client, address, stop.clone()));
        let listens = async {
            while TcpStream::connect(address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(ANSWER_PATIENCE, listens).await.unwrap();
        Self { address, kubelet, reviews, stop, _folder: folder }
    }

    /// The whole answer; empty if the connection is closed at once.
    async fn get(&self, path: &str, token: Option<&str>) -> String {
        let call = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: reader\r\n{token}\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        tokio::time::timeout(ANSWER_PATIENCE, call).await.unwrap().unwrap_or_default()
    }

    /// The same, repeated while the reader reviews another token or has too many connections.
    async fn admitted(&self, token: Option<&str>) -> String {
        let repeated = async {
            loop {
                let answer = self.get("/metrics", token).await;
                if !answer.is_empty() && !answer.contains("is being reviewed") {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(ANSWER_PATIENCE, repeated).await.unwrap()
    }
}

impl Drop for RunningReader {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn serve_kubelet(socket: &Path, kubelet: CountingKubelet) {
    let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let service = PodResourcesListerServer::new(kubelet);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener));
}

#[tokio::test]
async fn only_the_agent_reads_the_page() {
    let reader = RunningReader::start().await;
    let other = format!("system:serviceaccount:comity-lease-7:comity-tenant-for-{DEVICE_READERS_AUDIENCE}");
    let cases = [
        (None, "401", "show a token"),
        (Some("nonsense".to_owned()), "401", "is invalid"),
        (Some(other), "403", "comity-tenant"),
        // The agent's token for the API server, and one that no audience was checked of.
        (Some(format!("{AGENTS_ACCOUNT}-for-kubernetes")), "401", "is not for the audience"),
        (Some(format!("{AGENTS_ACCOUNT}-for-anybody")), "401", "is not for the audience"),
    ];
    for (token, status, reason) in cases {
        let answer = reader.admitted(token.as_deref()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(reason), "{token:?}: {answer}");
        assert!(!answer.contains("GPU-0"), "{answer}");
    }
    assert_eq!(reader.kubelet.0.load(Ordering::SeqCst), 0, "a stranger costs the kubelet nothing");
    let page = reader.admitted(Some(&agents_token())).await;
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("device=\"GPU-0\""), "{page}");
    assert!(reader.get("/healthz", None).await.starts_with("HTTP/1.1 200"), "the kubelet's probe has no token");
}

#[tokio::test]
async fn callers_share_one_reading_and_one_review() {
    let reader = RunningReader::start().await;
    let (began, token) = (std::time::Instant::now(), agents_token());
    assert!(reader.admitted(Some(&token)).await.starts_with("HTTP/1.1 200"));
    for _ in 0..8 {
        let answers = join_all((0..3).map(|_| reader.admitted(Some(&token)))).await;
        assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
    }
    // At most one reading for each full age, however long this machine took.
    let most = usize::try_from(began.elapsed().as_secs() / crate::devices::MAX_READING_AGE.as_secs()).unwrap() + 1;
    assert!(reader.kubelet.0.load(Ordering::SeqCst) <= most, "{} readings", reader.kubelet.0.load(Ordering::SeqCst));
    assert!(reader.reviews.load(Ordering::SeqCst) <= most, "an accepted token is not reviewed in each call");
}

#[tokio::test]
async fn strangers_cannot_flood_the_api_server_or_keep_out_an_accepted_agent() {
    let reader = RunningReader::start().await;
    assert!(reader.admitted(Some(&agents_token())).await.starts_with("HTTP/1.1 200"));
    let began = std::time::Instant::now();
    let (mut refused, mut calls) = (0, 0);
    while calls < 30 {
        let token = format!("stranger-{calls}");
        let answers = join_all((0..3).map(|_| reader.get("/metrics", Some(&token)))).await;
        refused += answers.iter().filter(|answer| !answer.starts_with("HTTP/1.1 401")).count();
        calls += answers.len();
        let page = reader.get("/metrics", Some(&agents_token())).await;
        // The connection of a stranger may not have ended yet.
        assert!(page.is_empty() || page.starts_with("HTTP/1.1 200"), "{page}");
    }
    let most = usize::try_from(began.elapsed().as_millis() / 200).unwrap() + 2;
    let reviews = reader.reviews.load(Ordering::SeqCst) - 1;
    assert!(reviews <= most && reviews + refused >= calls, "{reviews} reviews of {calls} tokens, {refused} refused");
}

#[tokio::test]
async fn silent_connections_are_closed_and_leave_their_places() {
    let reader = RunningReader::start().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(reader.address).await.unwrap());
    }
    // Those beyond the bound end at once, the others when no request comes.
    for stream in &mut silent {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(ANSWER_PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a connection without a request lasts");
    }
    assert!(reader.admitted(Some(&agents_token())).await.starts_with("HTTP/1.1 200"));
}
