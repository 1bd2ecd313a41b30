//! One gRPC channel to the broker group: over several addresses, with a new connection as soon as
//! this side's certificate was renewed, and with the caller's trace in every call.
//!
//! Why the client changes connections, and not the server by `max_connection_age`: after a server's
//! GOAWAY the first call beside a stream that is still open fails unsent ("connection closed").
//! Here, calls after a renewal go to a fresh connection, and the old one closes after its last stream.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::Service;

use super::client::ClientTls;
use super::connector::{Connector, reason};
use super::elsewhere::{self, Kept, Watched};
use super::endpoints::BrokerEndpoints;
use crate::identity::TlsIdentity;
use crate::telemetry::inject_trace;

/// Brokers that one call is made at.
const MAX_TRIES: usize = 4;

/// How a channel behaves.
#[derive(Debug, Clone, Copy)]
pub struct ChannelOptions {
    /// For one broker, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Between HTTP/2 pings, also on an idle connection.
    pub keepalive_interval: Duration,
    /// A connection whose ping stays unanswered this long is closed.
    pub keepalive_timeout: Duration,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
        }
    }
}

/// A channel to the brokers; connects at the first call and again whenever a connection ends.
/// Needs a tokio runtime.
pub fn connect(endpoints: &BrokerEndpoints, tls: &ClientTls) -> BrokerChannel {
    connect_with(endpoints, tls, ChannelOptions::default())
}

/// Like [`connect`], with the choice.
pub fn connect_with(endpoints: &BrokerEndpoints, tls: &ClientTls, options: ChannelOptions) -> BrokerChannel {
    let connector = Connector::new(endpoints, tls, options.connect_timeout);
    let now = Generation { number: 0, channel: open(&connector, options) };
    let newest = Newest { now: now.clone(), shown: tls.identity() };
    BrokerChannel { shared: Arc::new(Shared { connector, options, newest: Mutex::new(newest) }), current: now }
}

/// The scheme is http because the connector brings its own TLS; the authority is never resolved.
fn open(connector: &Connector, options: ChannelOptions) -> Channel {
    Endpoint::from_static("http://broker.comity.internal")
        .user_agent(concat!("comity/", env!("CARGO_PKG_VERSION")))
        .expect("the user agent is plain ASCII")
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector.clone())
}

/// For generated clients: `RequestServiceClient::new(channel)`. Cheap to clone; clones share the connection. A call
/// that a broker sends elsewhere is made at the next one. A call that no broker took fails with `UNAVAILABLE` and the
/// reason for each broker.
#[derive(Clone)]
pub struct BrokerChannel {
    shared: Arc<Shared>,
    current: Generation,
}

struct Shared {
    connector: Connector,
    options: ChannelOptions,
    newest: Mutex<Newest>,
}

struct Newest {
    now: Generation,
    shown: Option<watch::Receiver<TlsIdentity>>,
}

/// The channel of one identity.
#[derive(Clone)]
struct Generation {
    number: u64,
    channel: Channel,
}

impl Shared {
    /// The channel to another broker than the one of `have`. Many calls may find out at once: one goes ahead.
    fn elsewhere(&self, have: u64) -> Generation {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.now.number == have {
            let channel = open(&self.connector, self.options);
            newest.now = Generation { number: have + 1, channel };
        }
        newest.now.clone()
    }

    /// Brokers that a call is made at. One name may stand for several brokers, so that a new connection may help.
    fn tries(&self) -> usize {
        self.connector.addresses().len().clamp(2, MAX_TRIES)
    }

    /// The channel for new calls; another one than before where the identity was renewed.
    fn newest(&self, have: &Generation) -> Option<Generation> {
        // Each change is whole before the lock is given back, so a panic elsewhere harms nothing.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = newest.shown.as_mut().is_some_and(|shown| {
            let changed = shown.has_changed().unwrap_or(false);
            shown.mark_unchanged();
            changed
        });
        if renewed {
            let channel = open(&self.connector, self.options);
            newest.now = Generation { number: newest.now.number + 1, channel };
        }
        (newest.now.number != have.number).then(|| newest.now.clone())
    }
}

impl Service<http::Request<Body>> for BrokerChannel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let Some(newest) = self.shared.newest(&self.current) {
            self.current = newest;
        }
        self.current.channel.poll_ready(cx).map_err(unavailable)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        inject_trace(request.headers_mut());
        let (request, kept) = Kept::keep(request);
        let call = self.current.channel.call(request);
        let (shared, mut number) = (Arc::clone(&self.shared), self.current.number);
        Box::pin(async move {
            let mut answer = call.await.map_err(unavailable)?;
            for _ in 1..shared.tries() {
                if !elsewhere::is_said(answer.headers()) {
                    break;
                }
                let mut next = shared.elsewhere(number);
                let Some(request) = kept.again() else { break };
                number = next.number;
                poll_fn(|cx| next.channel.poll_ready(cx)).await.map_err(unavailable)?;
                answer = next.channel.call(request).await.map_err(unavailable)?;
            }
            let (head, body) = answer.into_parts();
            let body = Watched::watch(body, move || drop(shared.elsewhere(number)));
            Ok(http::Response::from_parts(head, body))
        })
    }
}

impl fmt::Debug for BrokerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerChannel").field("brokers", &self.shared.connector.addresses()).finish()
    }
}

/// A transport error as a status that callers retry, in words for the operator.
fn unavailable(error: tonic::transport::Error) -> Status {
    let status = Status::from_error(Box::new(error));
    let message = reason(&status);
    match status.code() {
        Code::Cancelled | Code::Unknown | Code::Unavailable | Code::Internal => {
            // Callers look into the source to learn whether a connection was made at all.
            let mut unavailable = Status::unavailable(message);
            unavailable.set_source(Arc::new(status));
            unavailable
        }
        code => Status::new(code, message),
    }
}
