//! HTTPS for the site API.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Most concurrent connections.
const MAX_CONNECTIONS: usize = 1_024;
/// Time limit of the TLS handshake, and of reading a request's head.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of a connection, and so of a followed log.
const CONNECTION_LIFE: Duration = Duration::from_secs(4 * 3_600);
/// Pause after `accept` fails, as it does when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the task is aborted; connections end with it.
pub(super) async fn serve(listener: TcpListener, tls: Arc<rustls::ServerConfig>, router: Router) {
    let acceptor = TlsAcceptor::from(tls);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (router, acceptor) = (router.clone(), acceptor.clone());
                connections.spawn(async move {
                    let ended = tokio::time::timeout(CONNECTION_LIFE, serve_one(stream, acceptor, router)).await;
                    if let Ok(Err(error)) = ended {
                        tracing::debug!(error, "a connection to the site API ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the site API cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, acceptor: TlsAcceptor, router: Router) -> Result<(), String> {
    let handshake = tokio::time::timeout(CLIENT_TIMEOUT, acceptor.accept(stream)).await;
    let stream = handshake.map_err(|_| "no TLS handshake".to_owned())?.map_err(|error| error.to_string())?;
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades()
        .await
        .map_err(|error| error.to_string())
}
