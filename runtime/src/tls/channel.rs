//! A gRPC channel to the broker group that fails over between addresses, reconnects after a renewal of the client's
//! certificate, and carries the caller's trace.
//!
//! The client changes connections, rather than the server by `max_connection_age`: after a GOAWAY, the first call
//! beside an open stream fails unsent ("connection closed"). Here, calls after a renewal use a new connection, and the
//! old one closes after its last stream.

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
use super::connector::{Connector, describe_failure};
use super::known_brokers::KnownBrokers;
use super::redirect::{RepeatableRequest, WatchedBody, is_redirect};
use crate::identity::TlsIdentity;
use crate::telemetry::{CALLS_TARGET, inject_trace};

/// Attempts of one call, at most.
const MAX_ATTEMPTS: usize = 4;

/// Timeouts of a channel.
#[derive(Debug, Clone, Copy)]
pub struct ChannelOptions {
    /// Timeout of a connection to one broker, for TCP and TLS together.
    pub connect_timeout: Duration,
    /// Interval of HTTP/2 pings, also on an idle connection.
    pub keepalive_interval: Duration,
    /// Time without answer to a ping after which the connection closes.
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

/// A channel to the brokers. Connects at the first call and after each lost connection, and learns brokers from answers
/// unless the list is fixed. Needs a tokio runtime.
pub fn connect(brokers: impl Into<KnownBrokers>, tls: &ClientTls) -> BrokerChannel {
    connect_with(brokers, tls, ChannelOptions::default())
}

/// Like [`connect`], with other timeouts.
pub fn connect_with(brokers: impl Into<KnownBrokers>, tls: &ClientTls, options: ChannelOptions) -> BrokerChannel {
    let connector = Connector::new(brokers.into(), tls, options.connect_timeout);
    let first = Connection { number: 0, channel: open(&connector, options) };
    let newest = NewestConnection { connection: first.clone(), identity: tls.identity() };
    BrokerChannel { shared: Arc::new(Shared { connector, options, newest: Mutex::new(newest) }), current: first }
}

/// The scheme is http because the connector does TLS itself. The authority is never resolved.
fn open(connector: &Connector, options: ChannelOptions) -> Channel {
    Endpoint::from_static("http://broker.comity.internal")
        .user_agent(concat!("comity/", env!("CARGO_PKG_VERSION")))
        .expect("the user agent is plain ASCII")
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector.clone())
}

/// A channel for generated clients: `RequestServiceClient::new(channel)`. Cheap to clone; clones share the connection.
/// Repeats a redirected call at the next broker. A call that reaches no broker fails with `UNAVAILABLE` and a reason
/// for each broker.
#[derive(Clone)]
pub struct BrokerChannel {
    shared: Arc<Shared>,
    current: Connection,
}

struct Shared {
    connector: Connector,
    options: ChannelOptions,
    newest: Mutex<NewestConnection>,
}

struct NewestConnection {
    connection: Connection,
    /// The identity that the connection presents.
    identity: Option<watch::Receiver<TlsIdentity>>,
}

/// A connection to one broker under one identity.
#[derive(Clone)]
struct Connection {
    /// Counts the connections of the channel.
    number: u64,
    channel: Channel,
}

impl Shared {
    /// A connection to another broker than that of connection `number`. Of several concurrent calls, the first opens
    /// it.
    fn next_broker(&self, number: u64) -> Connection {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.connection.number == number {
            let channel = open(&self.connector, self.options);
            newest.connection = Connection { number: number + 1, channel };
        }
        newest.connection.clone()
    }

    /// Attempts of a call. At least two, because one name may stand for several brokers.
    fn attempts(&self) -> usize {
        self.connector.brokers().endpoints().addresses().len().clamp(2, MAX_ATTEMPTS)
    }

    /// The connection for new calls; `None` if it is `current`. Opens a new one if the identity was renewed.
    fn newer_than(&self, current: &Connection) -> Option<Connection> {
        // Each change completes under the lock, so a poisoned lock has consistent content.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = newest.identity.as_mut().is_some_and(|identity| {
            let changed = identity.has_changed().unwrap_or(false);
            identity.mark_unchanged();
            changed
        });
        if renewed {
            let channel = open(&self.connector, self.options);
            newest.connection = Connection { number: newest.connection.number + 1, channel };
        }
        (newest.connection.number != current.number).then(|| newest.connection.clone())
    }
}

impl Service<http::Request<Body>> for BrokerChannel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let Some(newest) = self.shared.newer_than(&self.current) {
            self.current = newest;
        }
        self.current.channel.poll_ready(cx).map_err(unavailable)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        inject_trace(request.headers_mut());
        let (call_path, began) = (request.uri().path().to_owned(), tokio::time::Instant::now());
        let (request, repeatable) = RepeatableRequest::record(request);
        let call = self.current.channel.call(request);
        let (shared, mut number) = (Arc::clone(&self.shared), self.current.number);
        let answer = async move {
            let mut response = call.await.map_err(unavailable)?;
            shared.connector.brokers().learn_from(response.headers());
            for _ in 1..shared.attempts() {
                if !is_redirect(response.headers()) {
                    break;
                }
                let mut next = shared.next_broker(number);
                let Some(request) = repeatable.repeat() else { break };
                number = next.number;
                poll_fn(|cx| next.channel.poll_ready(cx)).await.map_err(unavailable)?;
                response = next.channel.call(request).await.map_err(unavailable)?;
                shared.connector.brokers().learn_from(response.headers());
            }
            let (head, body) = response.into_parts();
            let body = WatchedBody::watch(body, move || drop(shared.next_broker(number)));
            Ok(http::Response::from_parts(head, body))
        };
        Box::pin(async move {
            let answer = answer.await;
            log_call(&call_path, began.elapsed(), &answer);
            answer
        })
    }
}

impl fmt::Debug for BrokerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerChannel").field("brokers", &self.shared.connector.brokers().endpoints()).finish()
    }
}

/// Logs the path, duration and result of a call.
fn log_call(path: &str, took: Duration, answer: &Result<http::Response<Body>, Status>) {
    let result = match answer {
        // A refused call has its status in the headers.
        Ok(response) => Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code()),
        Err(status) => status.code(),
    };
    let ms = took.as_millis();
    tracing::debug!(target: CALLS_TARGET, call = path.trim_start_matches('/'), %ms, ?result, "called");
}

/// Converts a transport error to a status that callers retry, with a message for operators.
fn unavailable(error: tonic::transport::Error) -> Status {
    let status = Status::from_error(Box::new(error));
    let message = describe_failure(&status);
    match status.code() {
        Code::Cancelled | Code::Unknown | Code::Unavailable | Code::Internal => {
            // `ConnectError::behind` looks into the source.
            let mut unavailable = Status::unavailable(message);
            unavailable.set_source(Arc::new(status));
            unavailable
        }
        code => Status::new(code, message),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_call_is_logged_with_its_duration_and_result() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let refused = Ok(Status::not_found("none").into_http());
            log_call("/comity.v1.LeaseService/GetLease", Duration::from_millis(12), &refused);
            log_call("/x", Duration::ZERO, &Err(Status::unavailable("none")));
            log_call("/y", Duration::ZERO, &Ok(http::Response::new(Body::empty())));
        });
        let text = String::from_utf8(lines.0.lock().expect("free").clone()).expect("text");
        let first = "comity::calls: called call=\"comity.v1.LeaseService/GetLease\" ms=12 result=NotFound";
        for part in [first, "call=\"x\"", "result=Unavailable", "result=Ok"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
