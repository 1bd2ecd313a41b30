//! Connects to the first reachable broker.

use std::fmt;
use std::future::Future;
use std::io::Cursor;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncReadExt, Chain, Join, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;
use tracing::debug;

use super::client::ClientTls;
use super::endpoints::host;
use super::known_brokers::KnownBrokers;
use super::refusal::Refusal;
use crate::identity::TlsIdentity;
use crate::telemetry::CALLS_TARGET;

/// How long to wait for the server's first bytes.
const GREETING_WAIT: Duration = Duration::from_secs(1);
/// How many of the server's first bytes to read ahead, at most.
const GREETING_MAX_BYTES: usize = 1024;
/// How long an address is tried alone: longer than a handshake over a continent takes.
const HEAD_START: Duration = Duration::from_millis(400);

/// A verified connection to a broker.
pub type ClientStream = TlsStream<TcpStream>;

/// Why one broker could not be reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// The broker did not answer in time.
    #[error("no answer within {}ms", .0.as_millis())]
    Timeout(Duration),
    /// The TCP connection failed.
    #[error("{0}")]
    Tcp(std::io::Error),
    /// One side refused the other's certificate. Trying again does not help as long as nothing changes.
    #[error("{0}")]
    Certificate(String),
    /// TLS failed for another reason.
    #[error("{0}")]
    Tls(String),
    /// The server has the wrong identity. Trying again does not help.
    #[error("{0}")]
    SomebodyElse(String),
}

impl DialError {
    fn of_tls(error: &std::io::Error, own: &OwnIdentity) -> Self {
        let own = own.as_ref().map(|own| own.borrow().clone());
        let reason = Refusal::describe(error, own.as_ref());
        if Refusal::is_wrong_identity(error) {
            return Self::SomebodyElse(reason);
        }
        if Refusal::is_refusal(error) { Self::Certificate(reason) } else { Self::Tls(reason) }
    }
}

/// Why no broker could be reached, with a reason for each address.
#[derive(Debug)]
pub struct ConnectError {
    tried: Vec<(String, DialError)>,
}

impl ConnectError {
    /// The addresses in the order of attempts, with their errors.
    pub fn tried(&self) -> &[(String, DialError)] {
        &self.tried
    }

    /// The first reason, if every server has the wrong identity. This state does not pass by itself.
    pub fn somebody_else(&self) -> Option<&str> {
        let other = |(_, error): &(String, DialError)| matches!(error, DialError::SomebodyElse(_));
        match self.tried.first() {
            Some((_, DialError::SomebodyElse(reason))) if self.tried.iter().all(other) => Some(reason),
            _ => None,
        }
    }

    /// The `ConnectError` that caused a failed call; `None` if a broker was reached.
    pub fn behind(status: &tonic::Status) -> Option<&Self> {
        let mut cause = std::error::Error::source(status);
        while let Some(error) = cause {
            if let Some(unreached) = error.downcast_ref::<Self>() {
                return Some(unreached);
            }
            cause = error.source();
        }
        None
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot reach any broker: ")?;
        for (index, (address, error)) in self.tried.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{address}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConnectError {}

/// Describes a failed call: by its [`ConnectError`], else by its innermost cause, else by its message.
pub(super) fn describe_failure(status: &tonic::Status) -> String {
    let mut cause = std::error::Error::source(status);
    let mut last = None;
    while let Some(error) = cause {
        if let Some(unreached) = error.downcast_ref::<ConnectError>() {
            return unreached.to_string();
        }
        last = Some(error.to_string());
        cause = error.source();
    }
    last.unwrap_or_else(|| status.message().to_owned())
}

/// Connects to one address and verifies the server, without starting HTTP/2.
///
/// # Errors
/// [`DialError`].
pub async fn dial(address: &str, tls: &ClientTls, timeout: Duration) -> Result<ClientStream, DialError> {
    dial_with(address, &TlsConnector::from(Arc::new(tls.config())), &tls.identity(), timeout).await
}

/// The identity that this side presents, if any.
type OwnIdentity = Option<watch::Receiver<TlsIdentity>>;

async fn dial_with(
    address: &str,
    tls: &TlsConnector,
    own: &OwnIdentity,
    timeout: Duration,
) -> Result<ClientStream, DialError> {
    let attempt = async {
        let stream = TcpStream::connect(address).await.map_err(DialError::Tcp)?;
        stream.set_nodelay(true).map_err(DialError::Tcp)?;
        // Only used as SNI, for load balancers. The verifier checks the SPIFFE id instead.
        let name = ServerName::try_from(host(address).to_owned())
            .or_else(|_| ServerName::try_from("broker.comity.internal"))
            .expect("the fallback is a DNS name");
        tls.connect(name, stream).await.map_err(|error| DialError::of_tls(&error, own))
    };
    tokio::time::timeout(timeout, attempt).await.map_err(|_| DialError::Timeout(timeout))?
}

/// A connection that replays the bytes read ahead.
type GreetedStream = Join<Chain<Cursor<Vec<u8>>, ReadHalf<ClientStream>>, WriteHalf<ClientStream>>;

/// Waits for the server's first bytes, the HTTP/2 settings. In TLS 1.3, the client's handshake ends before the server
/// verifies the client's certificate; without this wait, a refusal would break the first call, mostly without a reason.
async fn await_greeting(mut stream: ClientStream, own: &OwnIdentity) -> Result<GreetedStream, DialError> {
    let mut first = vec![0; GREETING_MAX_BYTES];
    let read = match tokio::time::timeout(GREETING_WAIT, stream.read(&mut first)).await {
        Ok(Ok(0)) => {
            return Err(DialError::Tls("the server closed the connection".to_owned()));
        }
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return Err(DialError::of_tls(&error, own)),
        // Accepts a server that waits for the client to start.
        Err(_) => 0,
    };
    first.truncate(read);
    let (reader, writer) = tokio::io::split(stream);
    Ok(tokio::io::join(Cursor::new(first).chain(reader), writer))
}

/// Tries each address once per connection, starting after the last one used: the broker of a lost connection is the
/// least likely to be reachable.
#[derive(Clone)]
pub(super) struct Connector {
    brokers: KnownBrokers,
    next: Arc<AtomicUsize>,
    tls: TlsConnector,
    own: OwnIdentity,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(brokers: KnownBrokers, tls: &ClientTls, timeout: Duration) -> Self {
        Self {
            brokers,
            next: Arc::new(AtomicUsize::new(0)),
            tls: TlsConnector::from(Arc::new(tls.config())),
            own: tls.identity(),
            timeout,
        }
    }

    pub(super) fn brokers(&self) -> &KnownBrokers {
        &self.brokers
    }

    async fn connect(self) -> Result<GreetedStream, ConnectError> {
        let endpoints = self.brokers.endpoints();
        let addresses = endpoints.addresses();
        let first = self.next.load(Ordering::Relaxed);
        let mut waiting = (0..addresses.len()).map(|offset| (first + offset) % addresses.len());
        let mut tried: Vec<(usize, DialError)> = Vec::new();
        let mut underway = FuturesUnordered::new();
        underway.extend(waiting.next().map(|index| self.reach(index, &addresses[index])));
        // A broker that hangs takes the connection and says nothing: the next one is tried beside it.
        loop {
            let reached = tokio::select! {
                Some(reached) = underway.next() => reached,
                () = tokio::time::sleep(HEAD_START), if waiting.len() > 0 => {
                    underway.extend(waiting.next().map(|index| self.reach(index, &addresses[index])));
                    continue;
                }
                else => break,
            };
            match reached {
                (index, Ok(stream)) => {
                    self.next.store(index + 1, Ordering::Relaxed);
                    debug!(target: CALLS_TARGET, broker = %addresses[index], "connected");
                    return Ok(stream);
                }
                (index, Err(error)) => {
                    debug!(target: CALLS_TARGET, broker = %addresses[index], %error, "broker not reached");
                    tried.push((index, error));
                    underway.extend(waiting.next().map(|index| self.reach(index, &addresses[index])));
                }
            }
        }
        let count = addresses.len();
        tried.sort_by_key(|(index, _)| (index + count - first % count) % count);
        let tried = tried.into_iter().map(|(index, error)| (addresses[index].clone(), error)).collect();
        Err(ConnectError { tried })
    }

    async fn reach(&self, index: usize, address: &str) -> (usize, Result<GreetedStream, DialError>) {
        let dialled = dial_with(address, &self.tls, &self.own, self.timeout).await;
        let greeted = match dialled {
            Ok(stream) => await_greeting(stream, &self.own).await,
            Err(error) => Err(error),
        };
        (index, greeted)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<GreetedStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}
