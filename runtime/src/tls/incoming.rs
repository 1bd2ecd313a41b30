//! The accept loop: handshakes beside each other, each bounded in time, all bounded in number.

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

/// Finished handshakes that wait for the server to take them.
const READY_QUEUE: usize = 64;
/// After an accept error (most often: no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How much one listener takes on.
#[derive(Debug, Clone, Copy)]
pub struct IncomingLimits {
    /// A slower handshake is dropped.
    pub handshake_timeout: Duration,
    /// Most handshakes at one time; further clients wait in the kernel's queue.
    pub handshakes: usize,
    /// Most connections at one time, handshakes included.
    pub connections: usize,
}

impl Default for IncomingLimits {
    fn default() -> Self {
        // A pending handshake is a small task and a socket: a thousand silent clients must not keep the others out.
        Self { handshake_timeout: Duration::from_secs(3), handshakes: 2048, connections: 8192 }
    }
}

/// Verified connections, for tonic's `serve_with_incoming`. Dropping it stops the listener.
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

/// Accepts on a listener; needs a tokio runtime. Handshakes that fail are logged and dropped.
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

/// Permission to begin one more handshake and keep its connection.
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
        // Dropped with this loop, which aborts what is still shaking hands.
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                () = self.ready.closed() => break,
                Some(_) = running.join_next(), if !running.is_empty() => {}
                (slots, accepted) = self.next() => match accepted {
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

    /// Slots first, so that nothing is accepted that cannot be served. Cancelling loses nothing.
    async fn next(&self) -> (Slots, io::Result<(TcpStream, std::net::SocketAddr)>) {
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
            // Small messages must not wait for full packets; a failure shows at the next read.
            let _ = stream.set_nodelay(true);
            match tls.accept(stream, remote, timeout).await {
                Ok(connection) => {
                    drop(slots.handshake);
                    // The server is gone: so is the connection.
                    let _ = ready.send(connection.hold(slots.connection)).await;
                }
                Err(HandshakeError::Refused(reason)) => warn!(%remote, %reason, "TLS peer refused"),
                Err(error) => debug!(%remote, %error, "TLS handshake failed"),
            }
        }
    }
}
