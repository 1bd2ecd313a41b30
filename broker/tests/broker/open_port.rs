//! What a broker's open port costs it at most: watches, slow and silent clients, pages of other sites.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use comity_broker::api::shares::caller_slots::WATCHES;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_proto::{UDP_PROBE_MAGIC, UDP_PROBE_OTHER_ADDRESS};
use comity_runtime::join_token::JoinToken;
use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};
use comity_runtime::tls::{BrokerChannel, ClientTls, dial};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::io::AsyncReadExt as _;
use tokio::net::UdpSocket;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt as _;

use crate::federation::{DOMAIN, Federation, detail, within};

const GET_FEDERATION: &str = "/comity.v1.FederationService/GetFederation";
const WATCH: &str = "/comity.v1.WatchService/Watch";

async fn send(channel: &BrokerChannel, request: Request<Body>) -> Response<Body> {
    channel.clone().oneshot(request).await.unwrap()
}

fn events() -> Request<Body> {
    Request::builder().method(Method::GET).uri(WATCH).body(Body::empty()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_viewer_takes_all_watch_seats() {
    let federation = Federation::start().await;
    let (alice, ivan) = (federation.user("alice"), federation.user("ivan"));
    let watch = async |channel: &BrokerChannel| {
        let watch = WatchServiceClient::new(channel.clone()).watch(v1::WatchRequest::default()).await;
        watch.map(tonic::Response::into_inner)
    };
    let first = send(&alice, events()).await;
    assert_eq!(first.status(), StatusCode::OK);
    let mut watches = Vec::new();
    for _ in 1..WATCHES.per_caller {
        watches.push(watch(&alice).await.unwrap());
    }
    let refused = watch(&alice).await.unwrap_err();
    assert_eq!((refused.code(), detail(&refused).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
    assert!(refused.message().contains("user/alice has 32 watches"), "{refused:?}");
    assert_eq!(send(&alice, events()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    watch(&ivan).await.unwrap();

    // Seats come back however a watch ends.
    drop(first);
    within("the seat of events", async {
        while send(&alice, events()).await.status() != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    drop(watches);
    within("all seats", async {
        let mut again = Vec::new();
        while again.len() < WATCHES.per_caller {
            match watch(&alice).await {
                Ok(watch) => again.push(watch),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_survives_certificate_expiry() {
    let federation = Federation::start().await;
    let alice = SpiffeId::user(TrustDomain::new(DOMAIN).unwrap(), UserName::new("alice").unwrap());
    let validity = Duration::from_secs(6);
    let pem = federation.ca().new_identity(&alice, &[], validity, SystemTime::now()).unwrap();
    let mut client = WatchServiceClient::new(federation.channel(&pem));
    let mut events = client.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let ended = within("the end of the certificate", async {
        loop {
            if let Err(status) = events.message().await {
                return status;
            }
        }
    });
    let ended = ended.await;
    assert_eq!((ended.code(), detail(&ended).code.as_str()), (Code::Unauthenticated, "unauthenticated"));
}

/// A call whose message never ends.
fn endless(media: &str) -> Request<Body> {
    let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Status>>());
    Request::post(GET_FEDERATION).header("content-type", media).body(Body::new(body)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_slow_clients_without_a_certificate_are_cut_off() {
    let federation = Federation::bare().await;
    let channel = federation.anonymous();
    let mut health = HealthClient::new(federation.anonymous());
    let mut stream = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    while stream.message().await.unwrap().unwrap().status() != ServingStatus::Serving {}

    let silent = async {
        let anonymous = ClientTls::anonymous(federation.ca().roots().clone());
        let address = federation.broker().client_addr().to_string();
        let mut connection = dial(&address, &anonymous, Duration::from_secs(5)).await.unwrap();
        let began = Instant::now();
        // The server's greeting, then its end.
        let _ = connection.read_to_end(&mut Vec::new()).await;
        began.elapsed()
    };
    let slow_grpc = async { send(&channel, endless("application/grpc")).await };
    let slow_json = async { send(&channel, endless("application/json")).await };
    let ended = within("the limits", async { tokio::join!(silent, slow_grpc, slow_json) }).await;
    let (silent, slow_grpc, slow_json) = ended;
    assert!(silent > Duration::from_secs(9) && silent < Duration::from_secs(14), "{silent:?}");
    let status = Status::from_header_map(slow_grpc.headers()).unwrap();
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::DeadlineExceeded, "cancelled"));
    assert_eq!(slow_json.status(), StatusCode::GATEWAY_TIMEOUT);
    let body = slow_json.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("did not arrive within 10 s"), "{body:?}");

    // A connection with an open stream was not silent.
    let open = tokio::time::timeout(Duration::from_millis(300), stream.message()).await;
    assert!(open.is_err(), "{open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_are_refused() {
    let federation = Federation::bare().await;
    let admin = federation.user("admin");
    for media in ["application/json", "application/grpc"] {
        let request = || Request::post(GET_FEDERATION).header("content-type", media);
        let page = request().header("sec-fetch-site", "cross-site").body(Body::empty()).unwrap();
        assert_eq!(send(&admin, page).await.status(), StatusCode::FORBIDDEN, "{media}");
        let page = request().header("origin", "https://elsewhere.example").body(Body::empty()).unwrap();
        let refused = send(&admin, page).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{media}");
        let body = refused.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("permission_denied") && text.contains("https://elsewhere.example"), "{text}");
        assert_eq!(send(&admin, request().body(Body::empty()).unwrap()).await.status(), StatusCode::OK, "{media}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_check_sends_datagrams_to_the_caller_only() {
    let federation = Federation::start().await;
    let token: JoinToken = federation.invite("ncc-main", "probe").await.unwrap().token.parse().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let check = v1::CheckJoinRequest {
        cluster: "ncc-main".to_owned(),
        secret: token.secret.expose().to_vec(),
        udp_endpoints: vec!["192.0.2.9:51871".to_owned(), socket.local_addr().unwrap().to_string()],
        nonce: vec![7; 16],
    };
    let mut client = FederationServiceClient::new(federation.anonymous());
    let probes = client.check_join(check).await.unwrap().into_inner().probes;
    assert!(probes[0].not_sent.ends_with(UDP_PROBE_OTHER_ADDRESS), "{probes:?}");
    assert_eq!(probes[1].not_sent, "");
    let mut datagram = [0; 64];
    let (length, _) = within("a datagram", socket.recv_from(&mut datagram)).await.unwrap();
    assert_eq!(datagram[..length], [UDP_PROBE_MAGIC, &[7; 16]].concat());
}
