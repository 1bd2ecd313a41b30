//! The fabric: encrypted tunnels between the clusters of a peering.
//!
//! This is the `wireguard` fabric in netstack mode. WireGuard and TCP both run
//! in this process, so the agent needs no privileges, no network interface and
//! no routes, and nothing on the host can reach the tunnel but through it. It
//! carries the donor's Kubernetes API to the origin, and only that.
//!
//! ```text
//!            ┌────────────────────── one peering ──────────────────────┐
//! UDP ─▶ receive ─▶ demux ─▶ tunnel (boringtun) ─▶ netstack (smoltcp) ─▶ stream
//!  ▲                          │    ▲                    │                  │
//!  └──────── sealed ──────────┘    └──── driver: timers, room to send ◀────┘
//! ```
//!
//! One UDP socket serves every peering; each has its own key pair. `demux`,
//! `path`, `limiter`, `inner_packet`, `netstack` and `tunnel` do no I/O and
//! are told the time; `receive`, `peer` and `forward` are the thin shell.
//!
//! What it never does: carry anything but TCP between the two addresses of a
//! peering, answer a stranger, or remember anything about one.
//!
//! Bounds: 1,024 peerings; 16 endpoint candidates and 256 connections each;
//! 192 KiB of buffers a connection, which the system provides as they are
//! used; 64 packets on their way to the socket.

mod address;
mod demux;
mod device;
mod error;
mod forward;
mod inner_packet;
mod key;
mod limiter;
mod mode;
mod netstack;
mod path;
mod peer;
mod receive;
mod registry;
mod stream;
#[cfg(test)]
mod tests;
mod tunnel;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, JoinSet};

pub use address::{FabricAddresses, fabric_addresses};
pub use error::FabricError;
pub use forward::{Exposure, ForwardTarget, LocalForward, expose, forward_local};
pub use key::{KEY_BYTES, PresharedKey, WireguardKey, WireguardPublicKey};
pub use mode::{FabricMode, Reach, TunSettings};
pub use peer::{PeerConfig, PeerHandle, PeerStatus, Role};
pub use stream::{TunnelListener, TunnelStream};
pub use tunnel::Handshake;

use registry::{Added, SharedRegistry};
use wire::UdpWire;

/// The UDP port of a fabric when nothing else is said.
pub const DEFAULT_FABRIC_PORT: u16 = 51871;

/// What the socket is asked to hold while this process is busy; the system
/// gives less where `net.core.rmem_max` says so.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// How long [`Fabric::shutdown`] waits for the last resets to leave.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// How a fabric is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Where UDP is received; port 0 lets the system choose.
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
    wire: Arc<UdpWire>,
    registry: SharedRegistry,
    receiver: JoinHandle<()>,
    drivers: Mutex<JoinSet<()>>,
}

impl Fabric {
    /// Opens the UDP socket and starts to receive.
    ///
    /// # Errors
    /// [`FabricError::Bind`] when the address cannot be listened on.
    pub async fn bind(config: FabricConfig) -> Result<Self, FabricError> {
        let failed = |source| FabricError::Bind { listen: config.listen, source };
        let socket = UdpSocket::bind(config.listen).await.map_err(failed)?;
        let options = socket2::SockRef::from(&socket);
        options.set_recv_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
        options.set_send_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
        // The runtime learns only now that the socket takes datagrams; without
        // this the first handshake would be lost.
        socket.writable().await.map_err(failed)?;
        let wire = Arc::new(UdpWire::new(socket).map_err(failed)?);
        let registry = SharedRegistry::new();
        let receiver = tokio::spawn(receive::receive(Arc::clone(&wire), registry.clone()));
        Ok(Self { wire, registry, receiver, drivers: Mutex::new(JoinSet::new()) })
    }

    /// Where UDP is received.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.wire.local_addr()
    }

    /// Adds a peering and begins its handshake.
    ///
    /// The same peering, epoch and keys again change nothing but the endpoint
    /// candidates; a new epoch, or other keys, replaces the tunnel. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// [`FabricError::StaleEpoch`], [`FabricError::KeyInUse`],
    /// [`FabricError::TooManyPeerings`], [`FabricError::TooManyEndpoints`] or
    /// [`FabricError::Randomness`].
    pub fn add_peer(&self, config: PeerConfig) -> Result<PeerHandle, FabricError> {
        match self.registry.add(config, Instant::now())? {
            Added::Known(peer) => Ok(PeerHandle { peer }),
            Added::New { peer, replaced } => {
                replaced.inspect(|old| old.close());
                let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
                while drivers.try_join_next().is_some() {}
                drivers.spawn(peer::drive(Arc::clone(&peer), Arc::clone(&self.wire)));
                Ok(PeerHandle { peer })
            }
        }
    }

    /// The peering, if it is part of the fabric.
    #[must_use]
    pub fn peer(&self, peering: &str) -> Option<PeerHandle> {
        self.registry.get(peering).map(|peer| PeerHandle { peer })
    }

    /// Ends a peering: its its connections are reset, and its keys go with the
    /// last handle to it. False if there was none.
    pub fn remove_peer(&self, peering: &str) -> bool {
        self.registry.remove(peering).inspect(|peer| peer.close()).is_some()
    }

    /// Says who may talk to whom through a peering's tunnel; it replaces what
    /// was said before, at once and for connections that are open too. Until
    /// it is said nobody may. In mode `netstack` no packet of others enters a
    /// tunnel, and there is nothing to do.
    ///
    /// # Errors
    /// [`FabricError::Removed`] for a peering that is not part of the fabric;
    /// [`FabricError::TooMany`]; [`FabricError::Firewall`].
    pub fn set_reachable(&self, peering: &str, reach: Reach) -> Result<(), FabricError> {
        let _ = reach;
        match self.peer(peering) {
            Some(_) => Ok(()),
            None => Err(FabricError::Removed { peering: peering.to_owned() }),
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
        // The receiver holds the socket until it is gone.
        while !self.receiver.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    fn close(&self) {
        self.receiver.abort();
        self.registry.take_all().iter().for_each(|peer| peer.close());
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
