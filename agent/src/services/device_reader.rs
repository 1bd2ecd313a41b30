//! `comity-agent read-devices`: serves a page that says which pods hold the devices of this node.
//!
//! The page names pods of all tenants, so it answers the agent's ServiceAccount only, by a token for
//! [`DEVICE_READERS_AUDIENCE`] that the API server reviews. Whoever can reach the port costs the kubelet nothing: callers
//! share one reading, connections are bounded, and tokens are reviewed one at a time.

mod agent_tokens;
mod connection_slots;
mod page_cache;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use agent_tokens::{AgentTokens, Refused};
use page_cache::PageCache;

pub use agent_tokens::DEVICE_READERS_AUDIENCE;

/// Settings of a device reader.
#[derive(Clone, Debug)]
pub struct DeviceReader {
    /// This node's name.
    pub node: String,
    /// The kubelet's socket.
    pub socket: PathBuf,
    /// The user whose tokens may read the page.
    pub agent_user: String,
}

struct Served {
    tokens: AgentTokens,
    page: PageCache,
}

/// Serves the page on `/metrics` until told to stop; `client` reviews tokens.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(
    reader: DeviceReader,
    client: kube::Client,
    listen: SocketAddr,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(
        node = reader.node,
        listen = %listener.local_addr()?,
        agent_user = reader.agent_user,
        "the device reader runs"
    );
    let DeviceReader { node, socket, agent_user } = reader;
    let served = Served { tokens: AgentTokens::new(client, agent_user), page: PageCache::new(node, socket) };
    let app = Router::new()
        .route("/metrics", get(page))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Arc::new(served));
    tokio::select! {
        () = connection_slots::serve(listener, app) => Ok(()),
        () = stop.cancelled() => Ok(()),
    }
}

async fn page(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    if let Err(refused) = served.tokens.admit(&headers).await {
        let status = match refused {
            Refused::NoToken | Refused::InvalidToken => StatusCode::UNAUTHORIZED,
            Refused::OtherUser { .. } => StatusCode::FORBIDDEN,
            Refused::Busy | Refused::NotReviewed(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        tracing::debug!(%refused, "a caller is refused");
        return (status, format!("{refused}\n")).into_response();
    }
    match served.page.get().await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests;
