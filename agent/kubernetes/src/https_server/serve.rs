//! The port and its connections.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::Clock;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Most concurrent connections: each API server keeps a few.
const MAX_CONNECTIONS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest life of a connection: certificates change.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// Pause between two attempts to bind the port.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that the API server calls.
pub trait HttpsService: Send + Sync + 'static {
    /// Its name in logs.
    const NAME: &'static str;

    /// TLS configuration for new connections.
    fn tls(&self) -> &Arc<rustls::ServerConfig>;

    /// Whether a client with this certificate is admitted.
    fn admits(&self, client: Option<&CertificateDer<'_>>) -> bool;

    /// Answers a request.
    fn respond(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// Binds the address, retrying until it is free; `field` is the configuration's field, for the log.
pub async fn listen(address: SocketAddr, field: &str, clock: &dyn Clock) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::warn!(listen = %address, %error, "cannot listen for the API server; free the port or change \
                    {field}");
            }
        }
        clock.sleep(BIND_RETRY_INTERVAL).await;
    }
}

/// Serves until it is dropped. Each connection gets the current service; while there is none, connections are closed.
pub async fn serve<T: HttpsService>(listener: TcpListener, service: watch::Receiver<Option<Arc<T>>>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropping it ends the connections: clients keep them open, and would ask a server that was stopped.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "{} cannot accept a connection", T::NAME);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = service.borrow().clone();
        connections.spawn(async move {
            if let Some(service) = service
                && let Err(error) = connection(stream, service).await
            {
                tracing::debug!(error, "a connection to {} ended badly", T::NAME);
            }
            drop(place);
        });
    }
}

async fn connection<T: HttpsService>(stream: TcpStream, service: Arc<T>) -> Result<(), String> {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(service.tls()));
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream))
        .await
        .map_err(|_| "no handshake".to_owned())?
        .map_err(|error| error.to_string())?;
    if !service.admits(stream.get_ref().1.peer_certificates().and_then(<[_]>::first)) {
        return Err("a client that is not the API server".to_owned());
    }
    let respond = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.respond(request).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_CONNECTION_AGE)
        .serve_connection(TokioIo::new(stream), respond);
    tokio::time::timeout(MAX_CONNECTION_AGE, serving)
        .await
        .map_or(Ok(()), |ended| ended.map_err(|error| error.to_string()))
}
