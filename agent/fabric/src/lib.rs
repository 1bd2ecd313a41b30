//! The fabric: encrypted tunnels between the clusters of a peering.
//!
//! This is the `wireguard` fabric. In mode `netstack` WireGuard and TCP both run in this process, so the agent needs no
//! privileges, no network interface and no routes, and other programs on the host reach the tunnel only through it. It
//! carries the donor's Kubernetes API to the origin, and only that. In mode `tun` packets enter and leave through a
//! network device, so that pods reach each other too; see module `tun`.
//!
//! ```text
//!            ┌────────────────────── one peering ──────────────────────┐
//! UDP ─▶ receive ─▶ demux ─▶ tunnel (boringtun) ─▶ netstack (smoltcp) ─▶ stream
//!  ▲                          │    ▲                    │                  │
//!  └──────── sealed ──────────┘    └──── driver: timers, room to send ◀────┘
//! ```
//!
//! One UDP socket serves every peering; each has its own key pair. `demux`,
//! `path`, `limiter`, `netstack` and `tunnel` do no I/O and take the time as an
//! argument; `receive`, `peer` and `forward` do the I/O.
//!
//! Mode `netstack` carries only TCP between the two addresses of a peering, and
//! neither answers strangers nor keeps state about them.
//!
//! Bounds: 1,024 peerings; 16 endpoint candidates and 256 connections each;
//! 192 KiB of buffers a connection, which the system provides as they are
//! used; 64 packets on their way to the socket.

mod address;
mod demux;
mod error;
mod forward;
mod key;
mod limiter;
pub mod measured;
mod mode;
mod netstack;
mod netstack_stream;
mod path;
mod peer;
mod receive;
mod registry;
mod stream;
#[cfg(test)]
mod tests;
mod tun;
mod tunnel;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

pub use address::{FabricAddresses, fabric_addresses};
pub use error::FabricError;
pub use forward::{Exposure, LocalForward, expose, forward_api, forward_local};
pub use key::{KEY_BYTES, PresharedKey, WireguardKey, WireguardPublicKey};
pub use mode::{FabricMode, OverlaySettings, Reach, TunSettings};
pub use peer::config::{PeerConfig, Role};
pub use peer::fence::Fence;
pub use peer::handle::{PeerHandle, PeerStatus};
pub use peer::pod_network::PodNetwork;
pub use registry::MAX_PEERINGS;
pub use stream::{TunnelListener, TunnelStream};
pub use tun::{
    ApiRoute, ClusterNode, MAX_NODES, NodeOverlay, PlacementRequest, Published, PublishedError, overlay_device,
};
pub use tunnel::Handshake;

use peer::Peer;
use registry::{Added, SharedRegistry, TcpStack};
use tun::TunEngine;
use wire::{UdpWire, Wire};

/// Default UDP port of the fabric.
pub const DEFAULT_FABRIC_PORT: u16 = 51871;

/// Requested socket buffer; the system caps it at `net.core.rmem_max`.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// How long [`Fabric::shutdown`] waits for the last resets to leave.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after `accept` fails, as it does when file descriptors run out.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How a fabric is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// The UDP listen address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// How packets enter and leave the tunnels.
    pub mode: FabricMode,
}

impl Default for FabricConfig {
    /// Every IPv4 address, on [`DEFAULT_FABRIC_PORT`].
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_FABRIC_PORT)), mode: FabricMode::Netstack }
    }
}

/// The agent's end of all its tunnels. Dropping it ends them.
pub struct Fabric {
    registry: SharedRegistry,
    engine: Engine,
    drivers: Mutex<JoinSet<()>>,
}

/// The mode's engine.
enum Engine {
    Netstack { wire: Arc<UdpWire>, receiver: JoinHandle<()> },
    Tun(Box<TunEngine>),
}

impl Fabric {
    /// Opens the UDP socket, in mode `tun` the network device too, and starts
    /// to receive.
    ///
    /// # Errors
    /// [`FabricError::Bind`] when the address cannot be listened on; in mode
    /// `tun` also [`FabricError::Setting`], [`FabricError::Device`],
    /// [`FabricError::Network`] or [`FabricError::Firewall`].
    pub async fn bind(config: FabricConfig) -> Result<Self, FabricError> {
        Self::bind_fenced(config, Fence::always_open()).await
    }

    /// As [`bind`](Self::bind); sends and accepts packets only while the fence is open.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub async fn bind_fenced(config: FabricConfig, fence: Fence) -> Result<Self, FabricError> {
        let failed = |source| FabricError::Bind { listen: config.listen, source };
        let socket = std::net::UdpSocket::bind(config.listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let options = socket2::SockRef::from(&socket);
        options.set_recv_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
        options.set_send_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
        let drivers = Mutex::new(JoinSet::new());
        if let FabricMode::Tun(settings) = config.mode {
            let registry = SharedRegistry::new(TcpStack::Kernel, fence);
            let engine = Engine::Tun(Box::new(TunEngine::start(socket, settings, registry.clone())?));
            return Ok(Self { registry, engine, drivers });
        }
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        // The runtime learns only now that the socket takes datagrams; without
        // this the first handshake would be lost.
        socket.writable().await.map_err(failed)?;
        let wire = Arc::new(UdpWire::new(socket).map_err(failed)?);
        let registry = SharedRegistry::new(TcpStack::Netstack, fence);
        let receiver = tokio::spawn(receive::receive(Arc::clone(&wire), registry.clone()));
        Ok(Self { registry, engine: Engine::Netstack { wire, receiver }, drivers })
    }

    /// The UDP listen address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        match &self.engine {
            Engine::Netstack { wire, .. } => wire.local_addr(),
            Engine::Tun(engine) => engine.local_addr(),
        }
    }

    /// Adds a peering and begins its handshake.
    ///
    /// Adding the same peering, epoch and keys again changes only the endpoint candidates; another epoch, or other
    /// keys, replace the tunnel. Must be called within a tokio runtime; in mode `tun` it takes some milliseconds.
    ///
    /// # Errors
    /// [`FabricError::KeyInUse`], [`FabricError::TooManyPeerings`], [`FabricError::TooManyEndpoints`] or
    /// [`FabricError::Randomness`]; in mode `tun` also
    /// [`FabricError::Overlap`] or [`FabricError::Claimed`] when the other
    /// side's addresses cannot be told apart from others,
    /// [`FabricError::TooMany`], [`FabricError::Network`] or
    /// [`FabricError::Firewall`].
    pub fn add_peer(&self, config: PeerConfig) -> Result<PeerHandle, FabricError> {
        let now = Instant::now();
        let added = match &self.engine {
            Engine::Netstack { .. } => self.registry.add(config, now)?,
            Engine::Tun(engine) => {
                let register = || self.registry.add(config.clone(), now);
                engine.add(&config, register).inspect_err(|error| {
                    // A partly configured tunnel is of no use.
                    if matches!(error, FabricError::Network { .. } | FabricError::Firewall { .. }) {
                        self.remove_peer(&config.peering);
                    }
                })?
            }
        };
        match added {
            Added::Known(peer) => Ok(PeerHandle { peer }),
            Added::New { peer, replaced } => {
                replaced.inspect(|old| old.close());
                match &self.engine {
                    Engine::Netstack { wire, .. } => self.drive(&peer, wire),
                    Engine::Tun(engine) => self.drive(&peer, engine.link()),
                }
                Ok(PeerHandle { peer })
            }
        }
    }

    fn drive(&self, peer: &Arc<Peer>, wire: &Arc<impl Wire>) {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        while drivers.try_join_next().is_some() {}
        drivers.spawn(peer::drive(Arc::clone(peer), Arc::clone(wire)));
    }

    /// The peering, if it is part of the fabric.
    #[must_use]
    pub fn peer(&self, peering: &str) -> Option<PeerHandle> {
        self.registry.get(peering).map(|peer| PeerHandle { peer })
    }

    /// Ends a peering: its connections are reset, and its keys go with the
    /// last handle to it. False if there was none.
    pub fn remove_peer(&self, peering: &str) -> bool {
        let removed = self.registry.remove(peering).inspect(|peer| peer.close());
        if let Engine::Tun(engine) = &self.engine {
            engine.remove(peering);
        }
        removed.is_some()
    }

    /// Chooses the addresses at which this cluster sees another cluster's pod networks. In mode `tun` those that
    /// conflict with this cluster's or another one's are remapped; in mode `netstack`, which routes no pods, none.
    ///
    /// # Errors
    /// [`FabricError::NoFreeRange`] or [`FabricError::Network`].
    pub fn place(&self, request: &PlacementRequest<'_>) -> Result<Vec<PodNetwork>, FabricError> {
        match &self.engine {
            Engine::Tun(engine) => engine.place(request),
            Engine::Netstack { .. } => Ok(request.networks.iter().copied().map(PodNetwork::unchanged).collect()),
        }
    }

    /// Sets which addresses may communicate through a peering's tunnel, also for open connections; before the first
    /// call, none may. No effect in mode `netstack`, where no foreign packet enters a tunnel.
    ///
    /// # Errors
    /// [`FabricError::Removed`] for a peering that is not part of the fabric;
    /// [`FabricError::TooMany`]; [`FabricError::Firewall`].
    pub fn set_reachable(&self, peering: &str, reach: Reach) -> Result<(), FabricError> {
        match &self.engine {
            Engine::Tun(engine) => engine.set_reachable(peering, reach),
            Engine::Netstack { .. } if self.peer(peering).is_some() => Ok(()),
            Engine::Netstack { .. } => Err(FabricError::Removed { peering: peering.to_owned() }),
        }
    }

    /// In mode `tun`: routes pods of the cluster's other nodes to the tunnels and back. `nodes` are all nodes of the
    /// cluster, including this one. No effect in mode `netstack`.
    ///
    /// # Errors
    /// [`FabricError::NoOwnNode`], [`FabricError::Device`], [`FabricError::Network`] or [`FabricError::Firewall`].
    pub fn set_nodes(&self, nodes: &[ClusterNode]) -> Result<(), FabricError> {
        match &self.engine {
            Engine::Tun(engine) => engine.set_nodes(nodes),
            Engine::Netstack { .. } => Ok(()),
        }
    }

    /// State for the cluster's other nodes; `None` without other nodes, or in mode `netstack`.
    #[must_use]
    pub fn published(&self) -> Option<Published> {
        match &self.engine {
            Engine::Tun(engine) => engine.published(),
            Engine::Netstack { .. } => None,
        }
    }

    /// Notified whenever [`published`](Self::published) may have changed; one task may wait for it. `None` in mode
    /// `netstack`.
    #[must_use]
    pub fn published_changed(&self) -> Option<Arc<Notify>> {
        match &self.engine {
            Engine::Tun(engine) => Some(engine.changed()),
            Engine::Netstack { .. } => None,
        }
    }

    /// Ends every peering, tells the other sides, and frees the UDP port.
    pub async fn shutdown(self) {
        self.close();
        let mut drivers = std::mem::take(&mut *self.drivers.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = async { while drivers.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("some tunnels did not end in time");
        }
        drivers.shutdown().await;
        if let Engine::Netstack { receiver, .. } = &self.engine {
            // The receiver holds the socket until it is gone.
            while !receiver.is_finished() {
                tokio::task::yield_now().await;
            }
        }
    }

    fn close(&self) {
        if let Engine::Netstack { receiver, .. } = &self.engine {
            receiver.abort();
        }
        self.registry.take_all().iter().for_each(|peer| peer.close());
        if let Engine::Tun(engine) = &self.engine {
            engine.stop();
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}
