//! Bounds of a listener: shares of addresses and identities, and connections that nobody uses.

use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const NEVER: Duration = Duration::from_secs(1000);
const BRIEF: Duration = Duration::from_millis(200);
const LONG: IdleLimits = IdleLimits { first_call: NEVER, between_calls: NEVER, unread: NEVER, age: None };

struct Listener {
    federation: Federation,
    address: String,
    accepted: Incoming,
}

impl Listener {
    async fn start(limits: IncomingLimits) -> Self {
        let federation = Federation::new("dev.test");
        let source = federation.source(&federation.broker(1));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = incoming(listener, ServerTls::new(source.subscribe(), federation.0.roots()), limits);
        Self { federation, address, accepted }
    }

    async fn with_shares(change: impl FnOnce(&mut ConnectionShares)) -> Self {
        let mut limits = IncomingLimits::default();
        change(&mut limits.shares);
        Self::start(limits).await
    }

    async fn with_idle(certified: IdleLimits, anonymous: IdleLimits) -> Self {
        let idle = Some(IdleConnections { certified, anonymous });
        Self::start(IncomingLimits { idle, ..IncomingLimits::default() }).await
    }

    async fn anonymous(&self) -> ClientStream {
        dial(&self.address, &ClientTls::anonymous(self.federation.0.roots().clone()), SOON).await.unwrap()
    }

    async fn cluster(&self, name: &str) -> ClientStream {
        let source = self.federation.source(&self.federation.cluster(name));
        dial(&self.address, &self.federation.client(&source), SOON).await.unwrap()
    }

    async fn accept(&mut self) -> ServerConnection {
        tokio::time::timeout(SOON, self.accepted.next()).await.unwrap().unwrap().unwrap()
    }
}

/// Whether the server closes the connection, rather than hand it to its service.
async fn is_refused(mut client: ClientStream) -> bool {
    let end = tokio::time::timeout(SOON, client.read(&mut [0; 1])).await.unwrap();
    matches!(end, Ok(0) | Err(_))
}

#[tokio::test]
async fn callers_without_certificates_leave_room_for_those_with() {
    let mut listener = Listener::with_shares(|shares| shares.anonymous_per_address = 1).await;
    let _client = listener.anonymous().await;
    let first = listener.accept().await;
    assert!(is_refused(listener.anonymous().await).await);
    let _cluster = listener.cluster("ethz").await;
    assert!(listener.accept().await.peer().spiffe.is_some());

    drop(first);
    let _client = listener.anonymous().await;
    assert!(listener.accept().await.peer().spiffe.is_none());
}

#[tokio::test]
async fn one_identity_does_not_take_all_connections() {
    let mut listener = Listener::with_shares(|shares| shares.per_identity = 1).await;
    let _client = listener.cluster("ethz").await;
    let _first = listener.accept().await;
    assert!(is_refused(listener.cluster("ethz").await).await);
    let _other = listener.cluster("epfl").await;
    listener.accept().await;
}

#[tokio::test]
async fn one_address_does_not_take_all_handshakes() {
    let mut listener = Listener::with_shares(|shares| shares.handshakes_per_address = 1).await;
    let silent = TcpStream::connect(&listener.address).await.unwrap();
    let mut refused = TcpStream::connect(&listener.address).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(1), refused.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");

    drop(silent);
    tokio::time::sleep(BRIEF).await;
    let _client = listener.anonymous().await;
    listener.accept().await;
}

#[tokio::test]
async fn a_silent_connection_closes_and_one_with_a_call_does_not() {
    let brief = IdleLimits { first_call: BRIEF, between_calls: BRIEF, ..LONG };
    let mut listener = Listener::with_idle(LONG, brief).await;
    let (_client, mut cluster) = (listener.anonymous().await, listener.cluster("ethz").await);
    for _ in 0..2 {
        let mut connection = listener.accept().await;
        let end = tokio::time::timeout(BRIEF * 4, connection.read(&mut [0; 1])).await;
        if connection.peer().spiffe.is_none() {
            assert_eq!(end.unwrap().unwrap(), 0);
            continue;
        }
        // Other limits hold for certificates.
        assert!(end.is_err(), "{end:?}");
        cluster.write_all(b"x").await.unwrap();
        assert_eq!(connection.read(&mut [0; 1]).await.unwrap(), 1);
    }

    let _client = listener.anonymous().await;
    let mut connection = listener.accept().await;
    let call = connection.peer().calls.begin();
    let end = tokio::time::timeout(BRIEF * 4, connection.read(&mut [0; 1])).await;
    assert!(end.is_err(), "{end:?}");
    drop(call);
    assert_eq!(tokio::time::timeout(SOON, connection.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_connection_has_a_greatest_age() {
    let mut listener = Listener::with_idle(LONG, IdleLimits { age: Some(BRIEF), ..LONG }).await;
    let _client = listener.anonymous().await;
    let mut connection = listener.accept().await;
    let _call = connection.peer().calls.begin();
    let end = tokio::time::timeout(SOON, connection.read(&mut [0; 1])).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_loses_its_connection() {
    let mut listener = Listener::with_idle(IdleLimits { unread: BRIEF, ..LONG }, LONG).await;
    let _client = listener.cluster("ethz").await;
    let mut connection = listener.accept().await;
    let _call = connection.peer().calls.begin();
    let fill = async {
        loop {
            if let Err(error) = connection.write_all(&[0; 1 << 16]).await {
                return error;
            }
        }
    };
    assert_eq!(tokio::time::timeout(SOON, fill).await.unwrap().kind(), std::io::ErrorKind::TimedOut);
}
