//! Plain TCP at both ends of a tunnel.
//!
//! ```text
//! kubectl ─tcp─▶ LocalForward ═tunnel═▶ Exposure ─tcp─▶ kube-apiserver
//! pod ────tcp─▶ forward_api              (donor)
//!                 (origin)
//! ```
//!
//! Bytes are copied in both directions, and each direction ends separately, so that a watch lives as long as its two
//! ends want. The tunnel limits the number of connections; each has two buffers of fixed size here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_model::api_port::API_PORT;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::forward_target::client_check::ClientCheck;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::{ACCEPT_RETRY_INTERVAL, FabricError, PeerHandle, TunnelListener, TunnelStream};

/// Bytes on their way in one direction of one connection.
const SPLICE_BYTES: usize = 32 * 1024;
/// A target must accept a connection within this time.
const TARGET_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of one attempt to reach the donor: short, because TCP's own retries come at growing intervals.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Clients of one local forward that wait to be admitted; further ones are refused.
const UNCHECKED_CLIENTS: usize = 64;
/// Pause after the donor refused a connection: its agent may be starting.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);
/// How long a pod's connection is held while the donor cannot be reached: Go's clients wait 10 s for a TLS handshake.
const HOLD: Duration = Duration::from_secs(12);

/// Exposes a target to the other side, or the other side's API to this cluster's pods, until dropped.
#[derive(Debug)]
#[must_use = "dropping an exposure ends it"]
pub struct Exposure {
    task: JoinHandle<()>,
}

impl Drop for Exposure {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Lets the other side reach `target` through a port inside the tunnel.
///
/// # Errors
/// Those of [`PeerHandle::listen`].
pub fn expose(peer: &PeerHandle, tunnel_port: u16, target: ForwardTarget) -> Result<Exposure, FabricError> {
    let listener = peer.listen(tunnel_port)?;
    Ok(Exposure { task: tokio::spawn(serve_each(listener, move |tunnel| serve_target(tunnel, target.clone()))) })
}

/// Serves each connection in a task of its own, until the peering ends.
async fn serve_each<F>(mut listener: TunnelListener, serve: impl Fn(TunnelStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    // Ends with this task; its size is bounded by the tunnel's connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => drop(connections.spawn(serve(stream))),
                Err(_) => break,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(target: &ForwardTarget) -> std::io::Result<TcpStream> {
    let stream = tokio::time::timeout(TARGET_TIMEOUT, TcpStream::connect(target.address())).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn serve_target(tunnel: TunnelStream, target: ForwardTarget) {
    match connect(&target).await {
        Ok(stream) => splice(tunnel, stream).await,
        Err(error) => {
            tracing::warn!(%target, %error, "cannot reach the exposed target");
            tunnel.abort();
        }
    }
}

/// On the origin in mode `tun`: forwards connections to the donor's API server, which the firewall table redirects to
/// this process, through the tunnel.
///
/// If a pod connected to the donor directly, it would notice the end of a network failure only at TCP's next retry,
/// which may come as late again as the failure lasted. Here its connection ends when the line fails, and a new one is
/// held until the line is back.
///
/// # Errors
/// Those of [`PeerHandle::listen`].
pub fn forward_api(peer: &PeerHandle) -> Result<Exposure, FabricError> {
    let listener = peer.listen(API_PORT)?;
    let peer = peer.clone();
    Ok(Exposure { task: tokio::spawn(serve_each(listener, move |stream| serve_pod(stream, peer.clone()))) })
}

async fn serve_pod(stream: TunnelStream, peer: PeerHandle) {
    let reach = async {
        loop {
            match peer.connect_within(API_PORT, ATTEMPT).await {
                Err(FabricError::ConnectTimeout { .. }) => {}
                Err(FabricError::Refused { .. }) => tokio::time::sleep(REFUSED_PAUSE).await,
                outcome => break outcome,
            }
        }
    };
    match tokio::time::timeout(HOLD, reach).await {
        Ok(Ok(tunnel)) => splice(tunnel, stream).await,
        Ok(Err(error)) => {
            tracing::warn!(peering = peer.peering(), %error, "cannot forward a pod's connection to the donor's API \
                server");
            stream.abort();
        }
        Err(_) => {
            tracing::debug!(peering = peer.peering(), "the donor cannot be reached: a pod's connection is closed");
            stream.abort();
        }
    }
}

/// How long a donor may take to answer whether it still serves a cluster that takes no part any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Pause between such questions.
const ASK_INTERVAL: Duration = Duration::from_secs(5);

/// Forwards a local port into a tunnel, until dropped.
#[derive(Debug)]
#[must_use = "dropping a local forward ends it"]
pub struct LocalForward {
    local_addr: SocketAddr,
    task: JoinHandle<()>,
}

impl LocalForward {
    /// The listen address; for port 0, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for LocalForward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens on an address of this host and forwards connections to a port of the other side: those from this host, and
/// those of clients that `clients` admits.
///
/// While `revoked` says that this cluster takes no part any more, the port is closed unless the donor still answers on
/// it: leases may run to their end.
///
/// # Errors
/// [`FabricError::LocalBind`].
pub async fn forward_local(
    peer: &PeerHandle,
    bind: SocketAddr,
    tunnel_port: u16,
    clients: Arc<dyn ClientCheck>,
    revoked: watch::Receiver<bool>,
) -> Result<LocalForward, FabricError> {
    let failed = |source| FabricError::LocalBind { bind, source };
    let listener = TcpListener::bind(bind).await.map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    let clients = LocalClients { check: clients, unchecked: Arc::new(Semaphore::new(UNCHECKED_CLIENTS)) };
    let port = LocalPort { peer: peer.clone(), local_addr, tunnel_port, clients, revoked };
    let task = tokio::spawn(port.serve(listener));
    Ok(LocalForward { local_addr, task })
}

/// Clients of a local forward.
#[derive(Clone)]
struct LocalClients {
    check: Arc<dyn ClientCheck>,
    unchecked: Arc<Semaphore>,
}

impl LocalClients {
    /// Whether a client may use the forward. A flood of clients waits for no check.
    async fn admit(&self, stream: &TcpStream, client: IpAddr) -> bool {
        let is_this_host = stream.local_addr().is_ok_and(|local| local.ip() == client);
        if client.to_canonical().is_loopback() || is_this_host {
            return true;
        }
        let Ok(_checking) = self.unchecked.try_acquire() else { return false };
        self.check.admits(client).await
    }
}

/// The local end of a forward.
struct LocalPort {
    peer: PeerHandle,
    local_addr: SocketAddr,
    tunnel_port: u16,
    clients: LocalClients,
    revoked: watch::Receiver<bool>,
}

impl LocalPort {
    async fn serve(mut self, mut listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let unanswered = unanswered(&self.peer, self.tunnel_port, &mut self.revoked);
            tokio::select! {
                () = unanswered => {}
                () = accept_all(&listener, &self.peer, self.tunnel_port, &self.clients, &mut connections) => {}
            }
            drop(listener);
            let (peering, local) = (self.peer.peering(), self.local_addr);
            tracing::warn!(peering, %local, "this cluster takes no part any more and the donor does not answer: the \
                local port is closed");
            listener = self.reopened().await;
        }
    }

    /// The listener, once this cluster takes part again or the donor answers.
    async fn reopened(&self) -> TcpListener {
        loop {
            tokio::time::sleep(ASK_INTERVAL).await;
            let is_revoked = *self.revoked.borrow();
            if is_revoked && !answers(&self.peer, self.tunnel_port).await {
                continue;
            }
            match TcpListener::bind(self.local_addr).await {
                Ok(listener) => return listener,
                Err(error) => tracing::warn!(local = %self.local_addr, %error, "cannot open the local port again"),
            }
        }
    }
}

/// Returns when this cluster takes no part any more and the donor does not answer.
async fn unanswered(peer: &PeerHandle, tunnel_port: u16, revoked: &mut watch::Receiver<bool>) {
    loop {
        if revoked.wait_for(|revoked| *revoked).await.is_err() {
            // The agent stops.
            return std::future::pending().await;
        }
        if !answers(peer, tunnel_port).await {
            return;
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// Whether the donor accepts a connection.
async fn answers(peer: &PeerHandle, tunnel_port: u16) -> bool {
    match peer.connect_within(tunnel_port, ANSWER_WITHIN).await {
        Ok(stream) => {
            stream.abort();
            true
        }
        Err(_) => false,
    }
}

/// Serves clients; never returns.
async fn accept_all(
    listener: &TcpListener,
    peer: &PeerHandle,
    tunnel_port: u16,
    clients: &LocalClients,
    connections: &mut JoinSet<()>,
) {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let (peer, clients) = (peer.clone(), clients.clone());
                    connections.spawn(async move {
                        if clients.admit(&stream, from.ip()).await {
                            serve_client(stream, peer, tunnel_port).await;
                        } else {
                            stream.end();
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for the tunnel");
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_client(stream: TcpStream, peer: PeerHandle, tunnel_port: u16) {
    match peer.connect(tunnel_port).await {
        Ok(tunnel) if stream.set_nodelay(true).is_ok() => splice(tunnel, stream).await,
        Ok(tunnel) => tunnel.abort(),
        Err(error) => {
            tracing::warn!(peering = peer.peering(), %error, "cannot connect through the tunnel");
            stream.end();
        }
    }
}

/// Copies both ways until both directions have ended. If one direction fails, both connections are reset: a truncated
/// answer must not look complete.
async fn splice(mut tunnel: TunnelStream, mut stream: impl Resettable) {
    let copied = copy_bidirectional_with_sizes(&mut tunnel, &mut stream, SPLICE_BYTES, SPLICE_BYTES).await;
    if let Err(error) = copied {
        tracing::debug!(%error, "connection through the tunnel broke");
        tunnel.end();
        stream.end();
    }
}

/// A connection that can end by reset.
trait Resettable: AsyncRead + AsyncWrite + Unpin {
    fn end(self);
}

impl Resettable for TunnelStream {
    fn end(self) {
        self.abort();
    }
}

impl Resettable for TcpStream {
    fn end(self) {
        // If the reset fails, the connection closes normally.
        let _ = self.set_zero_linger();
    }
}
