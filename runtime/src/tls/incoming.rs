//! The accept loop of a listener: concurrent handshakes with a timeout, bounded in number, and connections that close
//! when nobody uses them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::admission::{Admission, ConnectionShares, ConnectionSlots};
use super::peer::PeerInfo;
use super::server::{HandshakeError, HeldConnection, IdleLimits, ServerConnection, ServerTls};
use super::source_address::SourceAddress;

/// Connections that wait for the server after their handshake.
const READY_QUEUE: usize = 64;
/// Pause after an accept error, most often for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct IncomingLimits {
    /// Timeout of a handshake.
    pub handshake_timeout: Duration,
    /// Concurrent handshakes, at most. Further clients wait in the kernel's queue.
    pub handshakes: usize,
    /// Concurrent connections, at most, including handshakes.
    pub connections: usize,
    /// Parts of these that one address or identity may have.
    pub shares: ConnectionShares,
    /// When unused connections close; `None` if the server does not count calls ([`PeerInfo::calls`]).
    pub idle: Option<IdleConnections>,
}

/// When unused connections close.
#[derive(Debug, Clone, Copy)]
pub struct IdleConnections {
    /// With a client certificate.
    pub certified: IdleLimits,
    /// Without.
    pub anonymous: IdleLimits,
}

impl Default for IncomingLimits {
    fn default() -> Self {
        // A pending handshake is cheap, and a thousand silent clients must not block others.
        let shares = ConnectionShares {
            // A quarter of all, because many agents may share an address, and all connect after a broker's start.
            handshakes_per_address: 512,
            anonymous_per_address: 64,
            anonymous: 1024,
            per_identity: 256,
        };
        Self { handshake_timeout: Duration::from_secs(3), handshakes: 2048, connections: 8192, shares, idle: None }
    }
}

/// A stream of verified connections, for tonic's `serve_with_incoming`. Dropping it stops the listener.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<ServerConnection>,
}

impl Stream for Incoming {
    type Item = io::Result<ServerConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

/// Accepts connections of a listener. Logs and drops failed handshakes. Needs a tokio runtime.
pub fn incoming(listener: TcpListener, tls: ServerTls, limits: IncomingLimits) -> Incoming {
    let (sender, ready) = mpsc::channel(READY_QUEUE);
    tokio::spawn(AcceptLoop::new(listener, tls, limits, sender).run());
    Incoming { ready }
}

struct AcceptLoop {
    listener: TcpListener,
    tls: ServerTls,
    limits: IncomingLimits,
    ready: mpsc::Sender<ServerConnection>,
    handshakes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    admission: Admission,
}

/// Permits for a handshake and for its connection.
struct Slots {
    handshake: OwnedSemaphorePermit,
    connection: OwnedSemaphorePermit,
}

impl AcceptLoop {
    fn new(
        listener: TcpListener,
        tls: ServerTls,
        limits: IncomingLimits,
        ready: mpsc::Sender<ServerConnection>,
    ) -> Self {
        let handshakes = Arc::new(Semaphore::new(limits.handshakes));
        let connections = Arc::new(Semaphore::new(limits.connections));
        let admission = Admission::new(limits.shares);
        Self { listener, tls, limits, ready, handshakes, connections, admission }
    }

    async fn run(self) {
        // Dropped with this loop, which aborts open handshakes.
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                () = self.ready.closed() => break,
                Some(_) = running.join_next(), if !running.is_empty() => {}
                (slots, accepted) = self.accept_next() => match accepted {
                    Ok((stream, remote)) => match self.admission.handshake(SourceAddress::of(remote.ip())) {
                        Ok(of_address) => {
                            running.spawn(self.handshake(stream, remote, slots, of_address));
                        }
                        Err(reason) => warn!(%remote, %reason, "connection refused"),
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Acquires slots first, so that every accepted connection can be served. Cancel-safe.
    async fn accept_next(&self) -> (Slots, io::Result<(TcpStream, SocketAddr)>) {
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        let connection = acquire(&self.connections).await.expect("never closed");
        let handshake = acquire(&self.handshakes).await.expect("never closed");
        (Slots { handshake, connection }, self.listener.accept().await)
    }

    fn handshake(
        &self,
        stream: TcpStream,
        remote: SocketAddr,
        slots: Slots,
        of_address: ConnectionSlots,
    ) -> impl Future<Output = ()> + Send + 'static {
        let Self { tls, limits, ready, admission, .. } = self;
        let (tls, limits, ready, admission) = (tls.clone(), *limits, ready.clone(), admission.clone());
        async move {
            // Sends small messages at once. A failure shows at the next read.
            let _ = stream.set_nodelay(true);
            let accepted = tls.accept(stream, remote, limits.handshake_timeout).await;
            drop((slots.handshake, of_address));
            let connection = match accepted {
                Ok(connection) => connection,
                Err(HandshakeError::Refused(reason)) => return warn!(%remote, %reason, "TLS peer refused"),
                Err(error) => return debug!(%remote, %error, "TLS handshake failed"),
            };
            let held = match admission.connection(connection.peer()) {
                Ok(share) => HeldConnection { place: slots.connection, slots: share },
                Err(reason) => return warn!(%remote, %reason, "connection refused"),
            };
            let idle = limits.idle.map(|idle| idle.of(connection.peer()));
            let mut connection = connection.hold(held);
            if let Some(idle) = idle {
                connection = connection.close_when_idle(idle);
            }
            // Drops the connection if the server has stopped.
            let _ = ready.send(connection).await;
        }
    }
}

impl IdleConnections {
    const fn of(&self, peer: &PeerInfo) -> IdleLimits {
        if peer.spiffe.is_some() { self.certified } else { self.anonymous }
    }
}
