//! The client for the API server: everything goes over one HTTP/2 connection while that has room.
//!
//! With HTTP/1.1 each watch needs its own connection, and a watch that ends closes it: every wait costs a TLS
//! handshake, and both sides need memory for tens of connections. An API server allows 100 streams on one connection
//! (k8s.io/apiserver, `MaxConcurrentStreams`), and further calls would wait as long as watches last. So calls that find
//! no room use HTTP/1.1 connections.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use rustls_pki_types::ServerName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

/// Calls and watches that share the connection: a few less than the 100 streams that an API server allows.
const SHARED: usize = 90;
/// How long the shared connection may be silent before it is pinged.
const SILENCE: Duration = Duration::from_secs(15);
/// Time limit of the answer to a ping; afterwards watches restart on another connection.
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// A client for the API server of `config`.
///
/// # Errors
/// When the configuration's certificates, keys or headers cannot be used.
pub(super) fn client(config: kube::Config) -> Result<kube::Client, BoxError> {
    let lanes = Lanes::new(&config)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryPolicy::server_retry()))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(lanes);
    Ok(kube::Client::new(service, config.default_namespace))
}

type Connector = TimeoutConnector<HttpsConnector<HttpConnector>>;

enum HttpVersion {
    Http1,
    Http2,
}

/// Connects with at most the given version: the server may choose HTTP/1.1.
fn connector(config: &kube::Config, version: HttpVersion) -> Result<Connector, BoxError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // A small frame must not wait for the acknowledgement of the one before.
    tcp.set_nodelay(true);
    let mut tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_only();
    if let Some(name) = &config.tls_server_name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(ServerName::try_from(name.clone())?));
    }
    let tls = tls.enable_http1();
    let tls = match version {
        HttpVersion::Http1 => tls.wrap_connector(tcp),
        HttpVersion::Http2 => tls.enable_http2().wrap_connector(tcp),
    };
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    Ok(connector)
}

/// The shared connection, and the connections of calls that found no room on it.
#[derive(Clone)]
struct Lanes {
    shared: Client<Connector, Body>,
    own: Client<Connector, Body>,
    room: Arc<Semaphore>,
}

impl Lanes {
    fn new(config: &kube::Config) -> Result<Self, BoxError> {
        let shared = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(SILENCE)
            .http2_keep_alive_timeout(PING_PATIENCE)
            .http2_keep_alive_while_idle(true)
            .build(connector(config, HttpVersion::Http2)?);
        let own = Client::builder(TokioExecutor::new()).build(connector(config, HttpVersion::Http1)?);
        Ok(Self { shared, own, room: Arc::new(Semaphore::new(SHARED)) })
    }
}

impl Service<Request<Body>> for Lanes {
    type Response = Response<Held>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let place = Arc::clone(&self.room).try_acquire_owned().ok();
        let answer = if place.is_some() { self.shared.request(request) } else { self.own.request(request) };
        Box::pin(async move { Ok(answer.await?.map(|body| Held { body, _place: place })) })
    }
}

/// An answer, which holds its stream on the connection until it is read or dropped.
struct Held {
    body: Incoming,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for Held {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use futures::StreamExt as _;
    use futures::future::join_all;
    use http_body_util::StreamBody;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::net::TcpListener;

    use super::*;

    /// Protocol of each connection that was made.
    type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

    /// Starts an API server whose answers never end, like those to watches; returns the client's configuration for it.
    async fn server(seen: Seen) -> kube::Config {
        let own = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap();
        let (certificate, key) = (CertificateDer::from(own.cert.der().to_vec()), own.signing_key.serialize_der());
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], PrivateKeyDer::try_from(key).unwrap())
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = kube::Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
        config.root_cert = Some(vec![certificate.to_vec()]);
        config.tls_server_name = Some("kubernetes".to_owned());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = acceptor.accept(stream).await.unwrap();
                let protocol = stream.get_ref().1.alpn_protocol().unwrap_or_default().to_vec();
                seen.lock().unwrap().push(protocol.clone());
                tokio::spawn(async move {
                    let begun = || futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes::Bytes::from("{}")))]);
                    let endless = move |_| async move {
                        let body = StreamBody::new(begun().chain(futures::stream::pending()));
                        Ok::<_, Infallible>(Response::new(body))
                    };
                    if protocol == b"h2" {
                        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        drop(builder.serve_connection(TokioIo::new(stream), service_fn(endless)).await);
                    } else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        drop(builder.serve_connection(TokioIo::new(stream), service_fn(endless)).await);
                    }
                });
            }
        });
        config
    }

    #[tokio::test]
    async fn watches_share_a_connection_and_none_waits_for_another_to_end() {
        let seen = Seen::default();
        let client = client(server(Arc::clone(&seen)).await).unwrap();
        let watch = || client.send(Request::get("/watch").body(Body::empty()).unwrap());
        let mut held = vec![watch().await.unwrap()];
        for answer in join_all((1..SHARED + 3).map(|_| watch())).await {
            held.push(answer.unwrap());
        }
        let shared = seen.lock().unwrap().iter().filter(|protocol| *protocol == b"h2").count();
        assert_eq!((shared, seen.lock().unwrap().len()), (1, 4), "{:?}", seen.lock().unwrap());
        // Streams that ended make room again.
        held.clear();
        held.push(watch().await.unwrap());
        assert_eq!(seen.lock().unwrap().len(), 4);
    }
}
