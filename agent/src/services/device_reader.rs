//! `comity-agent read-devices`: serves a page that says which pods hold the devices of this node.
//!
//! It reads the kubelet's socket and serves one page. It has no credentials: not those of the federation, and none for
//! the API server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use comity_agent_kubernetes::pod_resources::read_devices;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::devices::DevicePage;

/// Concurrent requests: each makes the kubelet list all its pods.
const CONCURRENT_READS: usize = 2;

/// Settings of a device reader.
#[derive(Clone, Debug)]
pub struct DeviceReader {
    /// This node's name.
    pub node: String,
    /// The kubelet's socket.
    pub socket: PathBuf,
}

/// Serves the page on `/metrics` until told to stop.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(reader: DeviceReader, listen: SocketAddr, stop: CancellationToken) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(node = reader.node, listen = %listener.local_addr()?, "the device reader runs");
    let app = Router::new()
        .route("/metrics", get(page))
        .layer(GlobalConcurrencyLimitLayer::new(CONCURRENT_READS))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Arc::new(reader));
    tokio::select! {
        served = axum::serve(listener, app).into_future() => served,
        () = stop.cancelled() => Ok(()),
    }
}

async fn page(State(reader): State<Arc<DeviceReader>>) -> Response {
    let refused = |reason: String| {
        tracing::warn!("{reason}");
        (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
    };
    let devices = match read_devices(&reader.socket).await {
        Ok(devices) => devices,
        Err(error) => return refused(error.to_string()),
    };
    match (DevicePage { node: reader.node.clone(), devices }).text() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => refused(error.to_string()),
    }
}
