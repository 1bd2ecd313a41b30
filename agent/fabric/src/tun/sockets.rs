//! TCP connections of the kernel between the fabric addresses of a peering.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as BlockingListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use comity_agent_model::api_port::API_PORT;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::kernel_side::KernelSide;
use crate::ACCEPT_RETRY_INTERVAL;
use crate::error::FabricError;
use crate::netstack::MAX_CONNECTIONS;
use crate::peer::Peer;

/// Idle time before TCP keepalive probes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// Pause between keepalive probes; the third without an answer ends the connection.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEPALIVE_TRIES: u32 = 3;
/// Unacknowledged data for this long ends the connection, so that its users notice a network failure instead of waiting
/// for TCP's next retransmission, which comes late after a long failure.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Opens a connection to a port of the other side.
pub(crate) async fn connect(peer: &Arc<Peer>, port: u16, within: Duration) -> Result<KernelStream, FabricError> {
    let peering = || peer.config().peering.clone();
    let kernel = peer.kernel().ok_or_else(|| peer.removed())?;
    if port == 0 {
        return Err(FabricError::PortZero { peering: peering() });
    }
    let permit = Arc::clone(&kernel.opened)
        .try_acquire_owned()
        .map_err(|_| FabricError::TooManyConnections { peering: peering(), limit: MAX_CONNECTIONS })?;
    let open = async {
        // Without a session the kernel's first SYN would be lost.
        peer.wait_handshake(within).await.map_err(io::Error::other)?;
        TcpStream::connect((kernel.allowed.remote.0, port)).await
    };
    let opened = tokio::select! {
        opened = tokio::time::timeout(within, open) => opened,
        () = kernel.ended.cancelled() => return Err(peer.removed()),
    };
    match opened.map(|opened| opened.and_then(|stream| KernelStream::new(kernel, stream, permit))) {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(FabricError::Refused { peering: peering(), port })
        }
        _ => Err(FabricError::ConnectTimeout { peering: peering(), port, waited: within }),
    }
}

/// Listens on this side's fabric addresses.
pub(crate) fn listen(peer: &Arc<Peer>, port: u16) -> Result<KernelListener, FabricError> {
    let peering = || peer.config().peering.clone();
    let kernel = peer.kernel().filter(|kernel| !kernel.ended.is_cancelled()).ok_or_else(|| peer.removed())?;
    match port {
        0 => return Err(FabricError::PortZero { peering: peering() }),
        API_PORT => {}
        _ => return Err(FabricError::PortShut { peering: peering(), port, open: API_PORT }),
    }
    let (v4, v6) = kernel.allowed.local;
    let open = |address: SocketAddr| {
        let listener = BlockingListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    let listen = SocketAddr::new(v4.into(), port);
    let mut listeners = vec![open(listen).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => FabricError::PortInUse { peering: peering(), port },
        _ => FabricError::Listen { peering: peering(), listen, source },
    })?];
    match open(SocketAddr::new(v6.into(), port)) {
        Ok(listener) => listeners.push(listener),
        Err(error) => tracing::debug!(%error, "the api is not exposed over ipv6"),
    }
    Ok(KernelListener { peer: Arc::clone(peer), listeners, port })
}

/// A TCP connection of the kernel that ends with its peering.
#[derive(Debug)]
pub(crate) struct KernelStream {
    stream: TcpStream,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: OwnedSemaphorePermit,
}

impl KernelStream {
    fn new(kernel: &KernelSide, stream: TcpStream, permit: OwnedSemaphorePermit) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let options = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
        options.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES))?;
        options.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
        let ended = Box::pin(kernel.ended.clone().cancelled_owned());
        Ok(Self { stream, ended, _permit: permit })
    }

    pub(crate) fn abort(self) {
        // If the reset fails, the connection closes normally.
        let _ = self.stream.set_zero_linger();
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.ended.as_mut().poll(context) {
            Poll::Ready(()) => {
                let _ = self.stream.set_zero_linger();
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for KernelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for KernelStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A port on this side's fabric addresses.
pub(crate) struct KernelListener {
    peer: Arc<Peer>,
    listeners: Vec<TcpListener>,
    port: u16,
}

impl std::fmt::Debug for KernelListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peering = &self.peer.config().peering;
        f.debug_struct("KernelListener").field("peering", peering).field("port", &self.port).finish()
    }
}

impl KernelListener {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) async fn accept(&mut self) -> Result<KernelStream, FabricError> {
        let removed = || self.peer.removed();
        let kernel = self.peer.kernel().ok_or_else(removed)?;
        let accept = async {
            let permit = Arc::clone(&kernel.accepted).acquire_owned().await.map_err(|_| removed())?;
            loop {
                let accepted = poll_fn(|context| {
                    let ready = self.listeners.iter().find_map(|listener| match listener.poll_accept(context) {
                        Poll::Ready(accepted) => Some(accepted),
                        Poll::Pending => None,
                    });
                    ready.map_or(Poll::Pending, Poll::Ready)
                });
                match accepted.await {
                    Ok((stream, _)) => break Ok((stream, permit)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection from the tunnel");
                        tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    }
                }
            }
        };
        let (stream, permit) = tokio::select! {
            accepted = accept => accepted?,
            () = kernel.ended.cancelled() => return Err(removed()),
        };
        KernelStream::new(kernel, stream, permit).map_err(|_| removed())
    }
}
