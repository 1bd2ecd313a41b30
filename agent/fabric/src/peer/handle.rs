//! The owner's handle to one peering of the fabric.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use smoltcp::socket::tcp::State;

use crate::error::FabricError;
use crate::netstack::{MAX_CONNECTIONS, OpenError};
use crate::netstack_stream::{NetstackListener, NetstackStream};
use crate::peer::Peer;
use crate::stream::{TunnelListener, TunnelStream};
use crate::tun::kernel_side::KernelSide;
use crate::tun::sockets;
use crate::tunnel::Handshake;

/// Time limit to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Status of a peering's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// When the last handshake was completed, if ever.
    pub last_handshake: Option<SystemTime>,
    /// The round trip of that handshake.
    pub handshake_rtt: Option<Duration>,
    /// Whether a session is in force.
    pub established: bool,
    /// Where authenticated packets last came from.
    pub endpoint: Option<SocketAddr>,
    /// Bytes received, WireGuard's headers included.
    pub rx_bytes: u64,
    /// Bytes sent, WireGuard's headers included.
    pub tx_bytes: u64,
    /// TCP connections inside the tunnel, in every state.
    pub connections: usize,
    /// Authentic packets that were dropped for their inner addresses or
    /// protocol: not zero means that the other side misbehaves.
    pub rejected_packets: u64,
}

/// A peering of the fabric. Cheap to clone; the peering itself ends with
/// [`Fabric::remove_peer`](crate::Fabric::remove_peer) or with its fabric.
#[derive(Clone)]
pub struct PeerHandle {
    pub(crate) peer: Arc<Peer>,
}

impl std::fmt::Debug for PeerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = self.peer.config();
        f.debug_struct("PeerHandle").field("peering", &config.peering).field("epoch", &config.epoch).finish()
    }
}

impl PeerHandle {
    /// The peering's id.
    #[must_use]
    pub fn peering(&self) -> &str {
        &self.peer.config().peering
    }

    /// The epoch of its keys.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.peer.config().epoch
    }

    /// The other side's cluster.
    #[must_use]
    pub fn remote_cluster(&self) -> &str {
        &self.peer.config().remote_cluster
    }

    /// Whether this process forwards pods' connections to the other side's API server: in mode `tun`, if its address is
    /// known.
    #[must_use]
    pub fn forwards_api(&self) -> bool {
        self.peer.kernel().is_some() && self.peer.config().remote_api.is_some()
    }

    /// Current status of the tunnel.
    #[must_use]
    pub fn status(&self) -> PeerStatus {
        self.peer.peek(|tunnel| {
            let (rx_bytes, tx_bytes) = tunnel.traffic();
            let handshake = tunnel.last_handshake();
            PeerStatus {
                last_handshake: handshake.map(|handshake| handshake.at),
                handshake_rtt: handshake.and_then(|handshake| handshake.rtt),
                established: tunnel.live_handshake().is_some(),
                endpoint: tunnel.path().endpoint(),
                rx_bytes,
                tx_bytes,
                connections: tunnel.connections() + self.peer.kernel().map_or(0, KernelSide::connections),
                rejected_packets: tunnel.rejected_packets(),
            }
        })
    }

    /// Waits until a session is in force, at once if one is.
    ///
    /// # Errors
    /// [`FabricError::HandshakeTimeout`] after `within`;
    /// [`FabricError::Removed`] when the peering ends.
    pub async fn wait_handshake(&self, within: Duration) -> Result<Handshake, FabricError> {
        self.peer.wait_handshake(within).await
    }

    /// Opens a connection to a port the other side exposes in the tunnel.
    ///
    /// # Errors
    /// [`FabricError::Refused`], [`FabricError::ConnectTimeout`] after 10 s,
    /// [`FabricError::TooManyConnections`], [`FabricError::PortZero`], or
    /// [`FabricError::Removed`].
    pub async fn connect(&self, port: u16) -> Result<TunnelStream, FabricError> {
        self.connect_within(port, CONNECT_TIMEOUT).await
    }

    /// As [`connect`](Self::connect), with another limit.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_within(&self, port: u16, within: Duration) -> Result<TunnelStream, FabricError> {
        if self.peer.kernel().is_some() {
            return sockets::connect(&self.peer, port, within).await.map(TunnelStream::kernel);
        }
        let peering = || self.peering().to_owned();
        let opened = self.peer.with(|tunnel| match tunnel.is_closed() {
            true => Err(self.peer.removed()),
            false => tunnel.stack().connect(port).map_err(|error| match error {
                OpenError::PortZero => FabricError::PortZero { peering: peering() },
                OpenError::TooManyConnections => {
                    FabricError::TooManyConnections { peering: peering(), limit: MAX_CONNECTIONS }
                }
            }),
        });
        let stream = NetstackStream::new(Arc::clone(&self.peer), opened?);
        let established = pin!(poll_fn(|context| {
            stream.with_socket(|socket| match socket.state() {
                State::SynSent | State::SynReceived => {
                    socket.register_send_waker(context.waker());
                    Poll::Pending
                }
                State::Closed => Poll::Ready(false),
                _ => Poll::Ready(true),
            })
        }));
        match tokio::time::timeout(within, established).await {
            Ok(true) => Ok(TunnelStream::netstack(stream)),
            Ok(false) if self.peer.peek(|tunnel| tunnel.is_closed()) => Err(self.peer.removed()),
            Ok(false) => Err(FabricError::Refused { peering: peering(), port }),
            Err(_) => {
                stream.abort();
                Err(FabricError::ConnectTimeout { peering: peering(), port, waited: within })
            }
        }
    }

    /// Exposes a port of this side to the other side.
    ///
    /// # Errors
    /// [`FabricError::PortInUse`], [`FabricError::PortZero`] or
    /// [`FabricError::Removed`]; in mode `tun`, where only [`API_PORT`](comity_agent_model::api_port::API_PORT) is open,
    /// [`FabricError::PortShut`] and [`FabricError::Listen`].
    pub fn listen(&self, port: u16) -> Result<TunnelListener, FabricError> {
        if self.peer.kernel().is_some() {
            return sockets::listen(&self.peer, port).map(TunnelListener::kernel);
        }
        let peering = || self.peering().to_owned();
        self.peer.peek(|tunnel| {
            if tunnel.is_closed() {
                return Err(self.peer.removed());
            }
            match port {
                0 => Err(FabricError::PortZero { peering: peering() }),
                _ if !tunnel.stack().listen(port) => Err(FabricError::PortInUse { peering: peering(), port }),
                _ => Ok(()),
            }
        })?;
        Ok(TunnelListener::netstack(NetstackListener::new(Arc::clone(&self.peer), port)))
    }
}
