//! A TCP connection of a tunnel's own stack, and the port that accepts them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use smoltcp::socket::tcp::{RecvError, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::FabricError;
use super::netstack::Connection;
use super::peer::Peer;

/// A TCP connection of a tunnel's own stack.
///
/// Its two directions end separately, as TCP's do: after `shutdown` it still
/// reads what the other side sends. Dropping it delivers what was written and
/// then closes; [`abort`](Self::abort) resets.
pub(super) struct NetstackStream {
    peer: Arc<Peer>,
    connection: Option<Connection>,
}

impl NetstackStream {
    pub(super) fn new(peer: Arc<Peer>, connection: Connection) -> Self {
        Self { peer, connection: Some(connection) }
    }

    /// Resets the connection, so that the other side does not take the received data for complete.
    pub(super) fn abort(mut self) {
        if let Some(connection) = self.connection.take() {
            self.peer.with(|tunnel| tunnel.stack().abort(connection, Instant::now()));
        }
    }

    /// Uses the socket without waking the driver.
    pub(super) fn with_socket<R>(&self, work: impl FnOnce(&mut Socket<'static>) -> R) -> R {
        let connection = self.connection.expect("only abort and drop take it, and they end the stream");
        self.peer.peek(|tunnel| work(tunnel.stack().socket(connection)))
    }

    fn kick(&self) {
        self.peer.with(|_| ());
    }
}

impl Drop for NetstackStream {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.peer.with(|tunnel| tunnel.stack().release(connection, Instant::now()));
        }
    }
}

impl std::fmt::Debug for NetstackStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetstackStream").field("peering", &self.peer.config().peering).finish_non_exhaustive()
    }
}

impl AsyncRead for NetstackStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received: Poll<io::Result<usize>> =
            self.with_socket(|socket| match socket.recv_slice(buffer.initialize_unfilled()) {
                Ok(0) => {
                    socket.register_recv_waker(context.waker());
                    Poll::Pending
                }
                Ok(length) => Poll::Ready(Ok(length)),
                Err(RecvError::Finished) => Poll::Ready(Ok(0)),
                Err(RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            });
        let length = ready!(received)?;
        if length > 0 {
            buffer.advance(length);
            // The window has grown; the other side may need to know.
            self.kick();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NetstackStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let sent: Poll<io::Result<usize>> = self.with_socket(|socket| match socket.send_slice(bytes) {
            Ok(0) => {
                socket.register_send_waker(context.waker());
                Poll::Pending
            }
            Ok(length) => Poll::Ready(Ok(length)),
            Err(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        });
        let length = ready!(sent)?;
        self.kick();
        Poll::Ready(Ok(length))
    }

    /// Written bytes need no flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends this direction after all written data; the other stays open.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with_socket(Socket::close);
        self.kick();
        Poll::Ready(Ok(()))
    }
}

/// A port that is exposed to the other side, until this is dropped.
pub(super) struct NetstackListener {
    peer: Arc<Peer>,
    port: u16,
}

impl NetstackListener {
    pub(super) fn new(peer: Arc<Peer>, port: u16) -> Self {
        Self { peer, port }
    }

    /// The port inside the tunnel.
    #[must_use]
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The next connection of the other side. Safe to cancel.
    ///
    /// # Errors
    /// [`FabricError::Removed`] when the peering ends.
    pub(super) async fn accept(&mut self) -> Result<NetstackStream, FabricError> {
        let removed = || FabricError::Removed { peering: self.peer.config().peering.clone() };
        let connection = poll_fn(|context| {
            self.peer.peek(|tunnel| match tunnel.is_closed() {
                true => Poll::Ready(None),
                false => tunnel.stack().poll_accept(self.port, context),
            })
        });
        let connection = connection.await.ok_or_else(removed)?;
        Ok(NetstackStream::new(Arc::clone(&self.peer), connection))
    }
}

impl Drop for NetstackListener {
    fn drop(&mut self) {
        self.peer.with(|tunnel| tunnel.stack().unlisten(self.port, Instant::now()));
    }
}

impl std::fmt::Debug for NetstackListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peering = &self.peer.config().peering;
        f.debug_struct("NetstackListener").field("peering", peering).field("port", &self.port).finish()
    }
}
