//! The one UDP socket, as the tunnels see it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

/// The result of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Sent, or lost: the path is UDP, whose users tolerate losses.
    Done,
    /// The socket takes no more at the moment.
    Full,
}

/// Somewhere to send datagrams without waiting.
pub(super) trait Wire: Send + Sync + 'static {
    fn send(&self, to: SocketAddr, datagram: &[u8]) -> Sent;

    /// Waits until it is worth trying again after [`Sent::Full`].
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// A UDP socket that may be bound to IPv4 or to both families.
#[derive(Debug)]
pub(super) struct UdpWire {
    socket: UdpSocket,
    local: SocketAddr,
}

impl UdpWire {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let local = socket.local_addr()?;
        Ok(Self { socket, local })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// The next datagram that has arrived, if any, and its true sender.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, from) = self.socket.try_recv_from(buffer)?;
        Ok((length, SocketAddr::new(from.ip().to_canonical(), from.port())))
    }
}

impl Wire for UdpWire {
    fn send(&self, to: SocketAddr, datagram: &[u8]) -> Sent {
        let to = match (self.local, to.ip()) {
            (SocketAddr::V6(_), IpAddr::V4(address)) => SocketAddr::new(address.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        match self.socket.try_send_to(datagram, to) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(error) => {
                tracing::trace!(%to, %error, "datagram not sent");
                Sent::Done
            }
            Ok(_) => Sent::Done,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }
}
