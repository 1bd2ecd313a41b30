//! HTTPS for the API server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::certificate::Certificates;
use super::review;

/// Connections at once: API servers keep a few each.
const MOST_CONNECTIONS: usize = 64;
/// A review carries one pod; etcd takes 1.5 MiB.
const MOST_BYTES: usize = 4 << 20;
const HANDSHAKE: Duration = Duration::from_secs(2);
const READ: Duration = Duration::from_secs(5);
/// Longest life of a connection: certificates change.
const CONNECTION: Duration = Duration::from_secs(600);

/// The certificate that new connections are shown; none before the first.
#[derive(Clone)]
pub(super) struct Identity(watch::Sender<Option<Arc<rustls::ServerConfig>>>, Arc<std::sync::Mutex<String>>);

impl Default for Identity {
    fn default() -> Self {
        Self(watch::Sender::new(None), Arc::default())
    }
}

impl Identity {
    /// From now on this one.
    pub(super) fn show(&self, certificates: &Certificates) -> Result<(), String> {
        let mut shown = self.1.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *shown == certificates.chain_pem {
            return Ok(());
        }
        let unusable =
            |what: &str| format!("the webhook's {what} cannot be used; delete its Secret to have it made anew");
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates.chain_pem.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(certificates.key_pem.expose().as_bytes())
            .map_err(|_| unusable("private key"))?;
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain.map_err(|_| unusable("certificate"))?, key)
            .map_err(|_| unusable("certificate"))?;
        self.0.send_replace(Some(Arc::new(config)));
        shown.clone_from(&certificates.chain_pem);
        Ok(())
    }
}

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, identity: Identity) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        // Never closed, so there always is a place some day.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the webhook cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let config = identity.0.borrow().clone();
        tokio::spawn(async move {
            if let Some(config) = config
                && let Err(error) = connection(stream, config).await
            {
                tracing::debug!(error, "a connection to the webhook ended badly");
            }
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, config: Arc<rustls::ServerConfig>) -> Result<(), String> {
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream))
        .await
        .map_err(|_| "no handshake".to_owned())?
        .map_err(|error| error.to_string())?;
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION)
        .serve_connection(TokioIo::new(stream), service_fn(respond));
    tokio::time::timeout(CONNECTION, serving).await.map_or(Ok(()), |ended| ended.map_err(|error| error.to_string()))
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match reviewed(request).await {
        Ok(body) => (StatusCode::OK, body),
        Err((status, reason)) => (status, reason.into()),
    };
    let kind = if status == StatusCode::OK { "application/json" } else { "text/plain; charset=utf-8" };
    let response = Response::builder().status(status).header(http::header::CONTENT_TYPE, kind).body(Full::new(body));
    Ok(response.unwrap_or_default())
}

async fn reviewed(request: Request<Incoming>) -> Result<Bytes, (StatusCode, String)> {
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "post a review".to_owned()));
    }
    let reading = Limited::new(request.into_body(), MOST_BYTES).collect();
    let body = tokio::time::timeout(READ, reading)
        .await
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the review did not arrive".to_owned()))?
        .map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?
        .to_bytes();
    let answer = review::answer(&body).map_err(|reason| {
        tracing::warn!(reason, "a review cannot be read; the pod is let in unchanged");
        (StatusCode::BAD_REQUEST, reason)
    })?;
    serde_json::to_vec(&answer).map(Bytes::from).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
