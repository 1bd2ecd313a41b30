//! A TCP connection inside a tunnel, and the port that accepts them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::FabricError;
use super::netstack_stream::{NetstackListener, NetstackStream};
use super::tun::sockets::{KernelListener, KernelStream};

/// A TCP connection inside a tunnel.
///
/// Its two directions end separately, as TCP's do: after `shutdown` it still
/// reads what the other side sends. Dropping it delivers what was written and
/// then closes; [`abort`](Self::abort) resets.
#[derive(Debug)]
pub struct TunnelStream(Stream);

#[derive(Debug)]
enum Stream {
    Netstack(NetstackStream),
    Kernel(KernelStream),
}

impl TunnelStream {
    pub(super) fn netstack(stream: NetstackStream) -> Self {
        Self(Stream::Netstack(stream))
    }

    pub(super) fn kernel(stream: KernelStream) -> Self {
        Self(Stream::Kernel(stream))
    }

    /// Resets the connection, so that the other side does not take the received data for complete.
    pub fn abort(self) {
        match self.0 {
            Stream::Netstack(stream) => stream.abort(),
            Stream::Kernel(stream) => stream.abort(),
        }
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Stream::Netstack(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Kernel(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Stream::Netstack(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Kernel(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Stream::Netstack(stream) => Pin::new(stream).poll_flush(context),
            Stream::Kernel(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Stream::Netstack(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Kernel(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A port that is exposed to the other side, until this is dropped.
#[derive(Debug)]
pub struct TunnelListener(Listener);

#[derive(Debug)]
enum Listener {
    Netstack(NetstackListener),
    Kernel(KernelListener),
}

impl TunnelListener {
    pub(super) fn netstack(listener: NetstackListener) -> Self {
        Self(Listener::Netstack(listener))
    }

    pub(super) fn kernel(listener: KernelListener) -> Self {
        Self(Listener::Kernel(listener))
    }

    /// The port inside the tunnel.
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.0 {
            Listener::Netstack(listener) => listener.port(),
            Listener::Kernel(listener) => listener.port(),
        }
    }

    /// The next connection of the other side. Safe to cancel.
    ///
    /// # Errors
    /// [`FabricError::Removed`] when the peering ends.
    pub async fn accept(&mut self) -> Result<TunnelStream, FabricError> {
        match &mut self.0 {
            Listener::Netstack(listener) => listener.accept().await.map(TunnelStream::netstack),
            Listener::Kernel(listener) => listener.accept().await.map(TunnelStream::kernel),
        }
    }
}
