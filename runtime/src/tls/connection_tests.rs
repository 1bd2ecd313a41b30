#![expect(clippy::unwrap_used, reason = "tests")]

mod authorities;
mod bounds;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::net::{TcpListener, TcpStream};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;

use super::*;
use crate::ca::CertificateAuthority;
use crate::identity::{IdentitySource, RootHash, TlsIdentity};
use crate::spiffe::{ClusterName, SpiffeId, TrustDomain};

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(10);

/// A federation with its certificate authority.
struct Federation(CertificateAuthority);

impl Federation {
    fn new(domain: &str) -> Self {
        let domain = TrustDomain::new(domain).unwrap();
        Self(CertificateAuthority::create(domain, SystemTime::now()).unwrap())
    }

    fn domain(&self) -> TrustDomain {
        self.0.trust_domain().clone()
    }

    fn broker(&self, node: u64) -> SpiffeId {
        SpiffeId::broker(self.domain(), node)
    }

    fn cluster(&self, name: &str) -> SpiffeId {
        SpiffeId::cluster(self.domain(), ClusterName::new(name).unwrap())
    }

    fn identity(&self, id: &SpiffeId, validity: Duration) -> TlsIdentity {
        self.identity_at(id, validity, SystemTime::now())
    }

    fn identity_at(&self, id: &SpiffeId, validity: Duration, now: SystemTime) -> TlsIdentity {
        TlsIdentity::from_pem(&self.0.new_identity(id, &[], validity, now).unwrap()).unwrap()
    }

    fn source(&self, id: &SpiffeId) -> IdentitySource {
        IdentitySource::new(self.identity(id, HOUR))
    }

    fn client(&self, source: &IdentitySource) -> ClientTls {
        ClientTls::new(self.0.roots().clone(), source.subscribe())
    }
}

/// A real gRPC server (health service) that records its callers. It has its own runtime: ending that closes the open
/// connections, like the death of a process.
struct Broker {
    address: SocketAddr,
    health: HealthReporter,
    callers: Arc<Mutex<Vec<PeerInfo>>>,
    /// Whether it redirects callers to another broker.
    redirects: Arc<AtomicBool>,
    /// The list of brokers in its redirects.
    lists: Arc<Mutex<String>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Broker {
    fn start(federation: &Federation, source: &IdentitySource) -> Self {
        Self::start_with(ServerTls::new(source.subscribe(), federation.0.roots()))
    }

    fn start_with(tls: ServerTls) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (health, service) = tonic_health::server::health_reporter();
        let callers = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&callers);
        let redirects = Arc::new(AtomicBool::new(false));
        let away = Arc::clone(&redirects);
        let lists = Arc::<Mutex<String>>::default();
        let listed = Arc::clone(&lists);
        let note = move |request: Request<()>| {
            let peer = request.extensions().get::<PeerInfo>().cloned();
            noted.lock().unwrap().push(peer.ok_or_else(|| Status::internal("no peer"))?);
            if away.load(Ordering::Relaxed) {
                let mut status = Status::unavailable("no leader is known");
                status.metadata_mut().insert(ELSEWHERE_METADATA, "1".parse().unwrap());
                status.metadata_mut().insert(BROKERS_METADATA, listed.lock().unwrap().parse().unwrap());
                return Err(status);
            }
            Ok::<_, Status>(request)
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            Server::builder()
                .add_service(InterceptedService::new(service, note))
                .serve_with_incoming(incoming(listener, tls, IncomingLimits::default()))
                .await
                .unwrap();
        });
        Self { address, health, callers, redirects, lists, runtime: Some(runtime) }
    }

    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    fn endpoints(&self) -> BrokerEndpoints {
        BrokerEndpoints::new([self.address.to_string()]).unwrap()
    }

    fn last_caller(&self) -> PeerInfo {
        self.callers.lock().unwrap().last().unwrap().clone()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn health_request() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

async fn check(channel: &BrokerChannel) -> Result<(), Status> {
    let mut client = HealthClient::new(channel.clone());
    let call = client.check(health_request());
    tokio::time::timeout(SOON, call).await.unwrap().map(|_| ())
}

fn whole_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn a_call_carries_the_verified_peer() {
    let federation = Federation::new("dev.test");
    let broker = Broker::start(&federation, &federation.source(&federation.broker(1)));
    let agent = federation.source(&federation.cluster("ethz"));
    check(&connect(&broker.endpoints(), &federation.client(&agent))).await.unwrap();
    let caller = broker.last_caller();
    assert_eq!(caller.spiffe, Some(federation.cluster("ethz")));
    let end = caller.cert_not_after.unwrap();
    assert_eq!(whole_seconds(end), whole_seconds(agent.current().not_after()));
    assert!(!caller.has_expired(SystemTime::now()) && caller.has_expired(end));

    let anonymous = ClientTls::anonymous(federation.0.roots().clone());
    check(&connect(&broker.endpoints(), &anonymous)).await.unwrap();
    assert_eq!(broker.last_caller().spiffe, None);
}

#[tokio::test]
async fn both_sides_rotate_while_a_stream_stays_open() {
    let federation = Federation::new("dev.test");
    let server = federation.source(&federation.broker(1));
    let agent = federation.source(&federation.cluster("ethz"));
    let broker = Broker::start(&federation, &server);
    let tls = federation.client(&agent);
    let channel = connect(&broker.endpoints(), &tls);
    let mut stream = HealthClient::new(channel.clone()).watch(health_request()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();

    server.update(federation.identity(&federation.broker(1), HOUR * 2));
    agent.update(federation.identity(&federation.cluster("ethz"), HOUR * 3));

    // The open stream continues.
    broker.health.set_service_status("", ServingStatus::NotServing).await;
    let next = tokio::time::timeout(SOON, stream.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next.status(), tonic_health::pb::health_check_response::ServingStatus::NotServing);
    // Later calls on the same channel present the new certificate.
    let newest = whole_seconds(agent.current().not_after());
    for _ in 0..3 {
        check(&channel).await.unwrap();
        assert_eq!(broker.last_caller().cert_not_after.map(whole_seconds), Some(newest));
    }
    let raw = dial(&broker.address.to_string(), &tls, SOON).await.unwrap();
    let leaf = &raw.get_ref().1.peer_certificates().unwrap()[0];
    assert_eq!(*leaf, server.current().certified_key().cert[0]);
    // The stream still uses the connection with the old certificates.
    broker.health.set_service_status("", ServingStatus::Serving).await;
    let next = tokio::time::timeout(SOON, stream.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
}

/// Performs a handshake and returns the results of server and client.
async fn handshake(
    server: &ServerTls,
    client: &ClientTls,
) -> (Result<ServerConnection, HandshakeError>, Result<ClientStream, DialError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accept = async {
        let (stream, remote) = listener.accept().await.unwrap();
        server.accept(stream, remote, SOON).await
    };
    tokio::join!(accept, dial(&address, client, SOON))
}

#[tokio::test]
async fn a_client_of_another_federation_is_refused_with_the_reason() {
    let (ours, theirs) = (Federation::new("ours.test"), Federation::new("theirs.test"));
    let server = ServerTls::new(ours.source(&ours.broker(1)).subscribe(), ours.0.roots());
    let stranger = theirs.source(&theirs.cluster("ethz"));
    let client = ClientTls::new(ours.0.roots().clone(), stranger.subscribe());
    let reason = handshake(&server, &client).await.0.unwrap_err().to_string();
    assert!(reason.contains("spiffe://theirs.test/cluster/ethz"), "{reason}");
    assert!(reason.contains("another federation: this one is 'ours.test'"), "{reason}");

    // A forger with the same trust domain is refused too.
    let forger = Federation::new("ours.test");
    let forged = forger.source(&forger.cluster("ethz"));
    let client = ClientTls::new(ours.0.roots().clone(), forged.subscribe());
    let reason = handshake(&server, &client).await.0.unwrap_err().to_string();
    assert!(reason.contains("not signed by the root of this federation"), "{reason}");

    // A call is refused and does not reach the service.
    let broker = Broker::start_with(server);
    let status = check(&connect(&broker.endpoints(), &client)).await.unwrap_err();
    assert!(broker.callers.lock().unwrap().is_empty());
    assert!(status.message().contains("refused this side's certificate"), "{status:?}");
}

#[tokio::test]
async fn a_server_of_another_federation_or_no_broker_is_refused() {
    let (ours, theirs) = (Federation::new("ours.test"), Federation::new("theirs.test"));
    let agent = ours.source(&ours.cluster("ethz"));
    let refused = async |federation: &Federation, id: SpiffeId, client: ClientTls| {
        let server = ServerTls::new(federation.source(&id).subscribe(), federation.0.roots());
        handshake(&server, &client).await.1.unwrap_err().to_string()
    };
    let reason = refused(&theirs, theirs.broker(1), ours.client(&agent)).await;
    assert!(reason.contains("spiffe://theirs.test/broker/1' is of another federation"), "{reason}");
    let reason = refused(&ours, ours.cluster("epfl"), ours.client(&agent)).await;
    assert!(reason.contains("cluster/epfl', want a broker"), "{reason}");
    let only_two = ours.client(&agent).expecting(ours.broker(2));
    let reason = refused(&ours, ours.broker(1), only_two).await;
    assert!(reason.contains("broker/1', want 'spiffe://ours.test/broker/2'"), "{reason}");
}

#[tokio::test]
async fn expired_certificates_are_refused_on_both_sides() {
    let federation = Federation::new("dev.test");
    let long_ago = SystemTime::now() - HOUR * 2;
    let expired = |id: &SpiffeId| IdentitySource::new(federation.identity_at(id, HOUR, long_ago));
    let good_server = federation.source(&federation.broker(1));
    let good_client = federation.source(&federation.cluster("ethz"));
    let tls = |source: &IdentitySource| ServerTls::new(source.subscribe(), federation.0.roots());

    let late = federation.client(&expired(&federation.cluster("ethz")));
    let reason = handshake(&tls(&good_server), &late).await.0.unwrap_err().to_string();
    assert!(reason.contains("expired"), "{reason}");
    let late = tls(&expired(&federation.broker(1)));
    let reason = handshake(&late, &federation.client(&good_client)).await.1.unwrap_err().to_string();
    assert!(reason.contains("expired"), "{reason}");
}

#[tokio::test]
async fn both_sides_distinguish_expired_from_not_yet_valid() {
    let federation = Federation::new("dev.test");
    let server = federation.source(&federation.broker(1));
    let at = |time| IdentitySource::new(federation.identity_at(&federation.broker(2), HOUR, time));
    let now = SystemTime::now();
    let tls = ServerTls::new(server.subscribe(), federation.0.roots());
    let soon = Duration::from_secs(60);

    // One certificate starts in the future, from a broker with a fast clock; the other one has expired.
    for (source, reason) in [(at(now + HOUR * 2), "not valid yet"), (at(now - HOUR * 2), "has expired")] {
        let (refused, _) = handshake(&tls, &federation.client(&source)).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(reason) && text.matches(" UTC").count() == 2 && text.contains("clock"), "{text}");
        assert_eq!(tls.refused_for_time().within(soon), [federation.broker(2)]);

        // The client gets the alert at its first read.
        let broker = Broker::start_with(tls.clone());
        let text = check(&connect(&broker.endpoints(), &federation.client(&source))).await.unwrap_err().to_string();
        assert!(text.contains("the peer refused this side's certificate") && text.contains(reason), "{text}");

        // The client verifies the server's certificate.
        let late = ServerTls::new(source.subscribe(), federation.0.roots());
        let (_, refused) = handshake(&late, &federation.client(&server)).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(reason) && text.matches(" UTC").count() == 2, "{text}");
    }

    // Refusing a forger does not cast doubt on the clock.
    let other = Federation::new("dev.test");
    let forged = IdentitySource::new(other.identity_at(&other.broker(3), HOUR, now - HOUR * 2));
    handshake(&tls, &federation.client(&forged)).await.0.unwrap_err();
    assert_eq!(tls.refused_for_time().within(soon), [federation.broker(2)]);

    // Backdating covers small clock differences.
    handshake(&tls, &federation.client(&at(now + HOUR - soon))).await.0.unwrap();
}

#[tokio::test]
async fn a_listener_that_requires_certificates_refuses_their_absence() {
    let federation = Federation::new("dev.test");
    let source = federation.source(&federation.broker(1));
    let required =
        ServerTls::with_client_certificates(source.subscribe(), federation.0.roots(), ClientCertificates::Required);
    let anonymous = ClientTls::anonymous(federation.0.roots().clone());
    let refused = handshake(&required, &anonymous).await.0;
    assert!(matches!(refused, Err(HandshakeError::Refused(_))), "{refused:?}");
    assert!(handshake(&required, &federation.client(&source)).await.0.is_ok());
}

#[tokio::test]
async fn joining_trusts_the_pinned_root_and_no_other() {
    let (federation, other) = (Federation::new("dev.test"), Federation::new("dev.test"));
    let broker = Broker::start(&federation, &federation.source(&federation.broker(1)));
    let joining = |pin: RootHash, domain: &str| ClientTls::pinned(pin, TrustDomain::new(domain).unwrap());
    let pin = federation.0.root_sha256();
    check(&connect(&broker.endpoints(), &joining(pin, "dev.test"))).await.unwrap();
    assert_eq!(broker.last_caller().spiffe, None);

    let wrong = connect(&broker.endpoints(), &joining(other.0.root_sha256(), "dev.test"));
    let status = check(&wrong).await.unwrap_err();
    assert!(format!("{status:?}").contains("that the join token pins"), "{status:?}");
    let reason = ConnectError::behind(&status).and_then(|error| error.somebody_else().map(str::to_owned)).unwrap();
    assert!(reason.contains("that the join token pins"), "{reason}");
    let status = check(&connect(&broker.endpoints(), &joining(pin, "x.test"))).await.unwrap_err();
    assert!(format!("{status:?}").contains("another federation"), "{status:?}");
    assert_eq!(broker.callers.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_presented_root_that_did_not_sign_is_refused() {
    // A forger presents the pinned root with a certificate that this root did not sign.
    let (federation, forger) = (Federation::new("dev.test"), Federation::new("dev.test"));
    let request = forger.0.new_identity(&forger.broker(1), &[], HOUR, SystemTime::now()).unwrap();
    let forged_leaf = request.chain.strip_suffix(forger.0.root_pem()).unwrap();
    let chain = format!("{forged_leaf}{}", federation.0.root_pem());
    let identity = TlsIdentity::from_pem(&crate::identity::IdentityPem { chain, ..request }).unwrap();
    let server = ServerTls::new(IdentitySource::new(identity).subscribe(), federation.0.roots());
    let joining = ClientTls::pinned(federation.0.root_sha256(), federation.domain());
    let reason = handshake(&server, &joining).await.1.unwrap_err().to_string();
    assert!(reason.contains("not signed by the root of this federation"), "{reason}");
}

#[tokio::test]
async fn the_channel_fails_over_to_the_next_broker() {
    let federation = Federation::new("dev.test");
    let agent = federation.source(&federation.cluster("ethz"));
    let mut one = Broker::start(&federation, &federation.source(&federation.broker(1)));
    let two = Broker::start(&federation, &federation.source(&federation.broker(2)));
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let list = BrokerEndpoints::new([dead, one.address, two.address].map(|a| a.to_string())).unwrap();
    let channel = connect(&list, &federation.client(&agent));
    check(&channel).await.unwrap();
    assert_eq!(one.callers.lock().unwrap().len(), 1);

    // After a broker dies under an open channel, calls succeed at the other one.
    one.kill();
    let retry = async {
        while check(&channel).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, retry).await.unwrap();
    assert!(!two.callers.lock().unwrap().is_empty());

    let none = BrokerEndpoints::new([dead.to_string()]).unwrap();
    let status = check(&connect(&none, &federation.client(&agent))).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let shown = status.message();
    assert!(shown.starts_with(&format!("cannot reach any broker: {dead}: ")), "{shown}");
    assert!(shown.contains("refused"), "{shown}");
}

#[tokio::test]
async fn a_broker_that_takes_connections_and_says_nothing_holds_nobody_up() {
    let federation = Federation::new("dev.test");
    let agent = federation.source(&federation.cluster("ethz"));
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let two = Broker::start(&federation, &federation.source(&federation.broker(2)));
    let list = BrokerEndpoints::new([hangs.local_addr().unwrap(), two.address].map(|a| a.to_string())).unwrap();
    let channel = connect(&list, &federation.client(&agent));
    // Less than the three seconds for which the first one alone is waited for.
    tokio::time::timeout(Duration::from_secs(2), check(&channel)).await.unwrap().unwrap();
    assert_eq!(two.callers.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_redirected_call_is_repeated_at_the_next_broker() {
    let federation = Federation::new("dev.test");
    let agent = federation.source(&federation.cluster("ethz"));
    let one = Broker::start(&federation, &federation.source(&federation.broker(1)));
    let two = Broker::start(&federation, &federation.source(&federation.broker(2)));
    let list = BrokerEndpoints::new([one.address, two.address].map(|a| a.to_string())).unwrap();
    let channel = connect(&list, &federation.client(&agent));
    check(&channel).await.unwrap();
    let calls = |broker: &Broker| broker.callers.lock().unwrap().len();
    assert_eq!((calls(&one), calls(&two)), (1, 0));

    // The call succeeds, and later calls go directly to the other broker.
    one.redirects.store(true, Ordering::Relaxed);
    check(&channel).await.unwrap();
    check(&channel).await.unwrap();
    assert_eq!((calls(&one), calls(&two)), (2, 2));

    // If all brokers redirect, the caller gets the refusal after one attempt at each.
    two.redirects.store(true, Ordering::Relaxed);
    let status = check(&channel).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "no leader is known"));
    assert_eq!((calls(&one), calls(&two)), (3, 3));
}

#[tokio::test]
async fn a_channel_calls_brokers_of_which_an_answer_told() {
    let (federation, strangers) = (Federation::new("dev.test"), Federation::new("dev.test"));
    let agent = federation.source(&federation.cluster("ethz"));
    let one = Broker::start(&federation, &federation.source(&federation.broker(1)));
    let two = Broker::start(&federation, &federation.source(&federation.broker(2)));
    one.redirects.store(true, Ordering::Relaxed);
    *one.lists.lock().unwrap() = format!("{},{}", one.address, two.address);
    let known = KnownBrokers::new(one.endpoints());
    check(&connect(&known, &federation.client(&agent))).await.unwrap();
    assert_eq!(known.lists().learnt(), [two.address.to_string()]);
    let calls = |broker: &Broker| broker.callers.lock().unwrap().len();
    assert_eq!((calls(&one), calls(&two)), (1, 1));

    // A caller that named the broker gets its refusal.
    assert!(check(&connect(&one.endpoints(), &federation.client(&agent))).await.is_err());
    assert_eq!(calls(&two), 1);

    // A learnt server of another federation gets no call.
    let stranger = Broker::start(&strangers, &strangers.source(&strangers.broker(3)));
    *one.lists.lock().unwrap() = stranger.address.to_string();
    let status = check(&connect(KnownBrokers::new(one.endpoints()), &federation.client(&agent))).await.unwrap_err();
    assert_eq!((status.message(), calls(&stranger)), ("no leader is known", 0));
}

#[tokio::test]
async fn slow_and_surplus_clients_do_not_block_others() {
    let federation = Federation::new("dev.test");
    let source = federation.source(&federation.broker(1));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let limits = IncomingLimits {
        handshake_timeout: Duration::from_millis(200),
        handshakes: 1,
        connections: 2,
        ..IncomingLimits::default()
    };
    let tls = ServerTls::new(source.subscribe(), federation.0.roots());
    let mut accepted = incoming(listener, tls, limits);
    let client = federation.client(&source);
    let next = async |accepted: &mut Incoming, limit: Duration| {
        tokio::time::timeout(limit, futures::StreamExt::next(accepted)).await
    };

    // A silent client occupies the only handshake slot until its timeout.
    let _silent = TcpStream::connect(&address).await.unwrap();
    let _one = dial(&address, &client, SOON).await.unwrap();
    let first = next(&mut accepted, SOON).await.unwrap().unwrap().unwrap();
    let _two = dial(&address, &client, SOON).await.unwrap();
    let _second = next(&mut accepted, SOON).await.unwrap().unwrap().unwrap();
    // Both connection slots are taken: the third client waits until the first connection closes.
    let three = tokio::spawn(async move { dial(&address, &client, SOON).await });
    assert!(next(&mut accepted, Duration::from_millis(300)).await.is_err());
    drop(first);
    assert!(next(&mut accepted, SOON).await.unwrap().unwrap().is_ok());
    three.await.unwrap().unwrap();
}
