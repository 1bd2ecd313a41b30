//! One peering of the fabric: its configuration, its tunnel, its driver.

use std::future::poll_fn;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use ipnet::Ipv4Net;
use smoltcp::socket::tcp::State;
use tokio::sync::{Notify, watch};

use super::demux::Message;
use super::netstack::{MAX_CONNECTIONS, Netstack, OpenError};
use super::netstack_stream::{NetstackListener, NetstackStream};
use super::path::Path;
use super::tun::{self, KernelSide};
use super::tunnel::{Handshake, Next, Tunnel, TunnelKeys};
use super::wire::Wire;
use super::{FabricError, PresharedKey, TunnelListener, TunnelStream, WireguardKey, WireguardPublicKey};

/// The donor waits this long with its first initiation, so that the two do not
/// cross; it still begins by itself when only it can reach the other.
const DONOR_PATIENCE: Duration = Duration::from_secs(1);
/// A connection must be open after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The driver never sleeps less, so that no rounding of timers makes it spin.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// Which side of the peering this cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Lends GPUs and exposes its API.
    Donor,
    /// Uses them; begins the handshake.
    Origin,
}

/// Everything that makes a peering's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// The peering's id.
    pub peering: String,
    /// The epoch of its keys.
    pub epoch: u64,
    /// This side's private key, of this peering and epoch only.
    pub local_secret: WireguardKey,
    /// The other side's public key, from its signed key bundle.
    pub remote_public: WireguardPublicKey,
    /// The pre-shared key, from the sealed envelope.
    pub preshared: PresharedKey,
    /// Where the other side may be reached. May be empty when the other side
    /// can reach this one.
    pub endpoints: Vec<SocketAddr>,
    /// This side's address inside the tunnel.
    pub local_address: Ipv6Addr,
    /// The other side's address inside the tunnel: its only allowed IP.
    pub remote_address: Ipv6Addr,
    /// How often something is sent on an idle tunnel, to keep middleboxes
    /// open. Whole seconds, at least one; 25 s suits most.
    pub keepalive: Duration,
    /// Which side this is.
    pub role: Role,
    /// The other side's cluster. Only peerings with one cluster may share
    /// routes: two clusters that lend to each other have two peerings.
    pub remote_cluster: String,
    /// The other side's pod networks, routed into the tunnel. Only mode `tun`
    /// looks at them.
    pub routes: Vec<Ipv4Net>,
    /// On the origin, where the donor's API server is at home: TCP to it goes
    /// through the tunnel instead. Only mode `tun` looks at it.
    pub remote_api: Option<SocketAddr>,
}

impl PeerConfig {
    /// The same but for its endpoint candidates.
    pub(super) fn is_same_tunnel(&self, other: &Self) -> bool {
        *self == Self { endpoints: self.endpoints.clone(), ..other.clone() }
    }
}

/// What is known of a peering's tunnel.
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

struct Driven {
    tunnel: Tunnel,
    /// The time the driver sleeps to.
    wakes_at: Instant,
}

/// The shared state of a peering.
pub(super) struct Peer {
    config: PeerConfig,
    driven: Mutex<Driven>,
    /// What is only there where the kernel's stack is used.
    kernel: Option<KernelSide>,
    kick: Notify,
    handshake: watch::Sender<Option<Handshake>>,
}

impl Peer {
    /// The seed is for the peering's own stack; without one it uses the kernel's.
    pub(super) fn new(config: PeerConfig, number: u32, seed: Option<u64>, now: Instant) -> Self {
        let first_attempt = match config.role {
            Role::Donor => now + DONOR_PATIENCE,
            Role::Origin => now,
        };
        let path = Path::new(config.endpoints.clone(), config.keepalive, first_attempt);
        let keys =
            TunnelKeys { local: &config.local_secret, remote: config.remote_public, preshared: &config.preshared };
        let stack = seed.map(|seed| Netstack::new(config.local_address, config.remote_address, seed, now));
        let kernel = stack.is_none().then(|| KernelSide::new(&config));
        let tunnel = Tunnel::new(&keys, number, config.keepalive, path, stack, now);
        Self {
            config,
            driven: Mutex::new(Driven { tunnel, wakes_at: now }),
            kernel,
            kick: Notify::new(),
            handshake: watch::Sender::new(None),
        }
    }

    pub(super) fn config(&self) -> &PeerConfig {
        &self.config
    }

    fn lock(&self) -> MutexGuard<'_, Driven> {
        // A panic under the lock leaves at worst a broken tunnel, and TCP and
        // WireGuard both recover from those.
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the tunnel and lets the driver look at what has changed.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Tunnel) -> R) -> R {
        let result = change(&mut self.lock().tunnel);
        self.kick.notify_one();
        result
    }

    /// Uses the tunnel in a way that gives the driver nothing to do.
    pub(super) fn peek<R>(&self, look: impl FnOnce(&mut Tunnel) -> R) -> R {
        look(&mut self.lock().tunnel)
    }

    /// What belongs to the kernel's stack, where that is used.
    pub(super) fn kernel(&self) -> Option<&KernelSide> {
        self.kernel.as_ref()
    }

    pub(super) fn receive(&self, message: Message, datagram: &[u8], from: SocketAddr, wire: &impl Wire) -> bool {
        let now = Instant::now();
        let mut driven = self.lock();
        let authentic = driven.tunnel.receive(message, datagram, from, now, wire, |stack, packet| {
            stack.iter_mut().for_each(|stack| stack.receive(packet, now));
            true
        });
        if authentic && message != Message::Data {
            self.publish(&driven.tunnel);
        }
        authentic
    }

    /// Takes datagrams of one sender for the kernel's stack, under one lock.
    pub(super) fn receive_run<'a>(
        &self,
        message: Message,
        datagrams: impl Iterator<Item = &'a [u8]>,
        from: SocketAddr,
        wire: &impl Wire,
        mut deliver: impl FnMut(&[u8]) -> bool,
    ) {
        let now = Instant::now();
        let mut driven = self.lock();
        for datagram in datagrams {
            driven.tunnel.receive(message, datagram, from, now, wire, |_, packet| deliver(packet));
        }
        self.publish(&driven.tunnel);
    }

    /// Seals packets of the kernel's, if there is a session: `work` is given
    /// the tunnel and where sealed packets go.
    pub(super) fn seal(&self, work: impl FnOnce(&mut Tunnel, SocketAddr)) {
        let mut driven = self.lock();
        if let Some(to) = driven.tunnel.outlet() {
            work(&mut driven.tunnel, to);
            driven.tunnel.path().sent(Instant::now());
        }
    }

    /// Services the tunnel in place of the driver, after a batch of datagrams.
    pub(super) fn respond(&self, wire: &impl Wire) {
        let mut driven = self.lock();
        let next = self.service(&mut driven, wire);
        if next.blocked || next.at < driven.wakes_at {
            self.kick.notify_one();
        }
    }

    fn service(&self, driven: &mut Driven, wire: &impl Wire) -> Next {
        let next = driven.tunnel.service(Instant::now(), wire);
        self.publish(&driven.tunnel);
        next
    }

    fn publish(&self, tunnel: &Tunnel) {
        let live = tunnel.live_handshake();
        self.handshake.send_if_modified(|known| std::mem::replace(known, live) != live);
    }

    /// Ends the tunnel: connections are reset, whoever waits is woken.
    pub(super) fn close(&self) {
        self.with(Tunnel::close);
        self.kernel.iter().for_each(KernelSide::end);
        // Even if it is what was known: waiters look whether this is the end.
        self.handshake.send_replace(None);
    }

    pub(super) fn removed(&self) -> FabricError {
        FabricError::Removed { peering: self.config.peering.clone() }
    }
}

/// Services a tunnel until it is closed: after each change, at each timer, and
/// when the socket has room again.
pub(super) async fn drive(peer: Arc<Peer>, wire: Arc<impl Wire>) {
    loop {
        let next = {
            let mut driven = peer.lock();
            let closed = driven.tunnel.is_closed();
            let mut next = peer.service(&mut driven, &*wire);
            if closed {
                // The resets have been sent.
                return;
            }
            next.at = next.at.max(Instant::now() + SHORTEST_SLEEP);
            driven.wakes_at = next.at;
            next
        };
        tokio::select! {
            () = peer.kick.notified() => {}
            () = tokio::time::sleep_until(next.at.into()) => {}
            _ = wire.writable(), if next.blocked => {}
        }
    }
}

/// A peering of the fabric. Cheap to clone; the peering itself ends with
/// [`Fabric::remove_peer`](super::Fabric::remove_peer) or with its fabric.
#[derive(Clone)]
pub struct PeerHandle {
    pub(super) peer: Arc<Peer>,
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
        &self.peer.config.peering
    }

    /// The epoch of its keys.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.peer.config.epoch
    }

    /// The other side's cluster.
    #[must_use]
    pub fn remote_cluster(&self) -> &str {
        &self.peer.config.remote_cluster
    }

    /// Whether pods of this cluster are led to the other side's API server: in mode `tun`, where its address is known.
    #[must_use]
    pub fn leads_pods(&self) -> bool {
        self.peer.kernel().is_some() && self.peer.config.remote_api.is_some()
    }

    /// What is known of the tunnel now.
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
        let mut handshakes = self.peer.handshake.subscribe();
        let established = async {
            loop {
                if self.peer.peek(|tunnel| tunnel.is_closed()) {
                    return Err(self.peer.removed());
                }
                if let Some(handshake) = *handshakes.borrow_and_update() {
                    return Ok(handshake);
                }
                handshakes.changed().await.map_err(|_| self.peer.removed())?;
            }
        };
        tokio::time::timeout(within, established).await.unwrap_or_else(|_| {
            Err(FabricError::HandshakeTimeout {
                peering: self.peering().to_owned(),
                waited: within,
                endpoints: self.peer.peek(|tunnel| tunnel.path().candidates().to_vec()),
            })
        })
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
            return tun::connect(self, port, within).await.map(TunnelStream::kernel);
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
    /// [`FabricError::Removed`]; in mode `tun`, where only [`API_PORT`](super::API_PORT) is open,
    /// [`FabricError::PortShut`] and [`FabricError::Listen`].
    pub fn listen(&self, port: u16) -> Result<TunnelListener, FabricError> {
        if self.peer.kernel().is_some() {
            return tun::listen(&self.peer, port).map(TunnelListener::kernel);
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
