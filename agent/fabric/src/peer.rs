//! One peering of the fabric: its tunnel, and the task that drives it.

pub(crate) mod config;
pub(crate) mod fence;
pub(crate) mod handle;
pub(crate) mod pod_network;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::demux::Message;
use super::error::FabricError;
use super::netstack::Netstack;
use super::path::Path;
use super::tun::kernel_side::KernelSide;
use super::tunnel::{Handshake, NextService, Tunnel, TunnelKeys};
use super::wire::Wire;
use config::{PeerConfig, Role};
use fence::Fence;

/// The donor delays its first initiation by this time, so that the two initiations do not cross. It still initiates,
/// because it may be the only side that can reach the other.
const DONOR_PATIENCE: Duration = Duration::from_secs(1);
/// Shortest sleep of the driver: rounded timers must not make it spin.
const MIN_SLEEP: Duration = Duration::from_millis(1);
/// How often the driver looks at a closed fence.
const FENCED_INTERVAL: Duration = Duration::from_millis(100);

struct Driven {
    tunnel: Tunnel,
    /// When the driver wakes.
    wakes_at: Instant,
}

/// The shared state of a peering.
pub(super) struct Peer {
    config: PeerConfig,
    driven: Mutex<Driven>,
    /// Present only in mode `tun`, with the kernel's stack.
    kernel: Option<KernelSide>,
    /// Closed: this process may not be the gateway any more.
    fence: Fence,
    kick: Notify,
    handshake: watch::Sender<Option<Handshake>>,
}

impl Peer {
    /// The seed is for the peering's own stack; without one it uses the kernel's.
    pub(super) fn new(config: PeerConfig, number: u32, seed: Option<u64>, fence: Fence, now: Instant) -> Self {
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
            fence,
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

    /// Uses the tunnel and wakes the driver.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Tunnel) -> R) -> R {
        let result = change(&mut self.lock().tunnel);
        self.kick.notify_one();
        result
    }

    /// Uses the tunnel without waking the driver.
    pub(super) fn peek<R>(&self, work: impl FnOnce(&mut Tunnel) -> R) -> R {
        work(&mut self.lock().tunnel)
    }

    /// State of the kernel's stack, in mode `tun`.
    pub(super) fn kernel(&self) -> Option<&KernelSide> {
        self.kernel.as_ref()
    }

    pub(super) fn receive(&self, message: Message, datagram: &[u8], from: SocketAddr, wire: &impl Wire) -> bool {
        if !self.fence.is_open() {
            return false;
        }
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
        if !self.fence.is_open() {
            return;
        }
        let now = Instant::now();
        let mut driven = self.lock();
        for datagram in datagrams {
            driven.tunnel.receive(message, datagram, from, now, wire, |_, packet| deliver(packet));
        }
        self.publish(&driven.tunnel);
    }

    /// Seals packets of the kernel, if there is a session: `work` gets the tunnel and the destination of sealed
    /// packets.
    pub(super) fn seal(&self, work: impl FnOnce(&mut Tunnel, SocketAddr)) {
        if !self.fence.is_open() {
            return;
        }
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

    fn service(&self, driven: &mut Driven, wire: &impl Wire) -> NextService {
        if !self.fence.is_open() {
            return NextService { at: Instant::now() + FENCED_INTERVAL, blocked: false };
        }
        let next = driven.tunnel.service(Instant::now(), wire);
        self.publish(&driven.tunnel);
        next
    }

    fn publish(&self, tunnel: &Tunnel) {
        let live = tunnel.live_handshake();
        self.handshake.send_if_modified(|known| std::mem::replace(known, live) != live);
    }

    /// Ends the tunnel: resets connections and wakes waiters.
    pub(super) fn close(&self) {
        self.with(Tunnel::close);
        self.kernel.iter().for_each(KernelSide::end);
        // Sent even if nothing changed: waiters check whether the tunnel ended.
        self.handshake.send_replace(None);
    }

    /// Waits until a session is in force, at once if one is.
    ///
    /// # Errors
    /// [`FabricError::HandshakeTimeout`] after `within`;
    /// [`FabricError::Removed`] when the peering ends.
    pub(super) async fn wait_handshake(&self, within: Duration) -> Result<Handshake, FabricError> {
        let mut handshakes = self.handshake.subscribe();
        let established = async {
            loop {
                if self.peek(|tunnel| tunnel.is_closed()) {
                    return Err(self.removed());
                }
                if let Some(handshake) = *handshakes.borrow_and_update() {
                    return Ok(handshake);
                }
                handshakes.changed().await.map_err(|_| self.removed())?;
            }
        };
        tokio::time::timeout(within, established).await.unwrap_or_else(|_| {
            Err(FabricError::HandshakeTimeout {
                peering: self.config.peering.clone(),
                waited: within,
                endpoints: self.peek(|tunnel| tunnel.path().candidates().to_vec()),
            })
        })
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
            next.at = next.at.max(Instant::now() + MIN_SLEEP);
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
