//! The admin server of a process: `/metrics`, `/healthz`, `/readyz` and `/buildinfo`, read-only and without secrets.
//!
//! It is plain HTTP without authentication: bind it to an address that only the operator's network reaches.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::{Encoder, Registry, TextEncoder};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

mod readiness;

pub use readiness::{Readiness, ReadinessGuard};

/// Concurrent requests: a scraper, a kubelet and a few people. Further ones wait.
const CONCURRENT_REQUESTS: usize = 32;
/// How long open requests may run after the server stops.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Name and version of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildInfo {
    /// Name of the service, such as `comity-broker`.
    pub service: String,
    /// Version of the workspace.
    pub version: String,
    /// Git commit, if known at build time.
    pub commit: Option<String>,
}

impl BuildInfo {
    /// A service at the version of this workspace; the commit is `COMITY_COMMIT` at build time.
    pub fn of(service: impl Into<String>) -> Self {
        Self {
            service: service.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("COMITY_COMMIT").map(str::to_owned),
        }
    }
}

/// The admin server could not start.
#[derive(Debug, Error)]
#[error("cannot listen on admin address {address}: {source}")]
pub struct AdminError {
    /// The configured address.
    pub address: SocketAddr,
    /// Error of the operating system.
    #[source]
    pub source: std::io::Error,
}

#[derive(Clone)]
struct AdminState {
    registry: Registry,
    readiness: Readiness,
    build: BuildInfo,
}

/// A running admin server.
#[derive(Debug)]
pub struct AdminServer {
    local_addr: SocketAddr,
    task: JoinHandle<()>,
}

impl AdminServer {
    /// Binds and serves until `stop` is cancelled.
    ///
    /// # Errors
    /// [`AdminError`] if the address cannot be bound.
    pub async fn start(
        address: SocketAddr,
        registry: Registry,
        readiness: Readiness,
        build: BuildInfo,
        stop: CancellationToken,
    ) -> Result<Self, AdminError> {
        let fail = |source| AdminError { address, source };
        let listener = TcpListener::bind(address).await.map_err(fail)?;
        let local_addr = listener.local_addr().map_err(fail)?;
        let router = router(AdminState { registry, readiness, build });
        let task = tokio::spawn(serve(listener, router, stop));
        Ok(Self { local_addr, task })
    }

    /// The bound address, with the actual port if port 0 was configured.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Waits until the server has stopped.
    pub async fn stopped(self) {
        // An aborted or panicked task has stopped too.
        let _ = self.task.await;
    }
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let graceful = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let limit = async {
        stop.cancelled().await;
        tokio::time::sleep(STOP_LIMIT).await;
    };
    tokio::select! {
        result = graceful.into_future() => if let Err(error) = result {
            tracing::error!(%error, "admin server ended");
        },
        () = limit => {}
    }
}

fn router(state: AdminState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/buildinfo", get(|State(state): State<AdminState>| async { Json(state.build) }))
        .layer(GlobalConcurrencyLimitLayer::new(CONCURRENT_REQUESTS))
        .with_state(state)
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&state.registry.gather(), &mut text) {
        Ok(()) => ([(header::CONTENT_TYPE, encoder.format_type().to_owned())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(state): State<AdminState>) -> Response {
    let pending = state.readiness.pending();
    if pending.is_empty() {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        let lines: String = pending.iter().map(|(name, reason)| format!("not ready: {name}: {reason}\n")).collect();
        (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use prometheus::IntCounter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn fetch(server: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(server).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn serves_metrics_health_readiness_and_build_until_stopped() {
        let registry = Registry::new();
        let counter = IntCounter::new("comity_test_total", "Counts the test.").unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.inc_by(3);
        let readiness = Readiness::new();
        let raft = readiness.guard("raft");
        let stop = CancellationToken::new();
        let address = "127.0.0.1:0".parse().unwrap();
        let build = BuildInfo::of("comity-test");
        let server = AdminServer::start(address, registry, readiness, build, stop.clone()).await.unwrap();
        let at = server.local_addr();

        assert!(fetch(at, "/metrics").await.contains("comity_test_total 3"));
        assert!(fetch(at, "/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = fetch(at, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("raft: starting"), "{unready}");
        raft.ready();
        assert!(fetch(at, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(fetch(at, "/buildinfo").await.contains("\"service\":\"comity-test\""));
        assert!(fetch(at, "/secrets").await.starts_with("HTTP/1.1 404"));
        let taken =
            AdminServer::start(at, Registry::new(), Readiness::new(), BuildInfo::of("x"), CancellationToken::new());
        assert!(taken.await.unwrap_err().to_string().contains(&at.to_string()));

        // An unfinished request does not keep the server from stopping.
        let mut stuck = tokio::net::TcpStream::connect(at).await.unwrap();
        stuck.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        stop.cancel();
        tokio::time::timeout(STOP_LIMIT * 2, server.stopped()).await.unwrap();
        assert!(tokio::net::TcpStream::connect(at).await.is_err());
    }
}
