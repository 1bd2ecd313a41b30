//! The accept loop of a listener: concurrent handshakes with a timeout, bounded in number.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::server::{HandshakeError, ServerConnection, ServerTls};

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
}

impl Default for IncomingLimits {
    fn default() -> Self {
        // A pending handshake is cheap, and a thousand silent clients must not block others.
        Self { handshake_timeout: Duration::from_secs(3), handshakes: 2048, connections: 8192 }
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
        Self { listener, tls, limits, ready, handshakes, connections }
    }

    async fn run(self) {
        // Dropped with this loop, which aborts open handshakes.
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                () = self.ready.closed() => break,
                Some(_) = running.join_next(), if !running.is_empty() => {}
                (slots, accepted) = self.accept_next() => match accepted {
                    Ok((stream, remote)) => {
                        running.spawn(self.handshake(stream, remote, slots));
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
    async fn accept_next(&self) -> (Slots, io::Result<(TcpStream, std::net::SocketAddr)>) {
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        let connection = acquire(&self.connections).await.expect("never closed");
        let handshake = acquire(&self.handshakes).await.expect("never closed");
        (Slots { handshake, connection }, self.listener.accept().await)
    }

    fn handshake(
        &self,
        stream: TcpStream,
        remote: std::net::SocketAddr,
        slots: Slots,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (tls, ready, timeout) = (self.tls.clone(), self.ready.clone(), self.limits.handshake_timeout);
        async move {
            // Sends small messages at once. A failure shows at the next read.
            let _ = stream.set_nodelay(true);
            match tls.accept(stream, remote, timeout).await {
                Ok(connection) => {
                    drop(slots.handshake);
                    // Drops the connection if the server has stopped.
                    let _ = ready.send(connection.hold(slots.connection)).await;
                }
                Err(HandshakeError::Refused(reason)) => warn!(%remote, %reason, "TLS peer refused"),
                Err(error) => debug!(%remote, %error, "TLS handshake failed"),
            }
        }
    }
}
