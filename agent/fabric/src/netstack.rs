//! The TCP stack inside one tunnel, on smoltcp.
//!
//! Does no I/O: packets go in with the time, and packets come out. It accepts only TCP from the peer's address to this
//! side's address; a port that is not exposed answers with a reset and takes no memory. The socket and buffers of a
//! connection are made when its SYN arrives, so there is no backlog of listening sockets, and one limit covers all
//! connections.

pub(super) mod inner_packet;
mod tunnel_device;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv6Addr;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use inner_packet::Segment;
use tunnel_device::TunnelDevice;

/// Connections of one peering, in either direction and in every state.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The receive window: 10 Mbit/s a connection over a path of 50 ms.
///
/// It is the largest that needs no window scaling. A scaled window is rounded
/// down to its unit, so its right edge moves back by a few bytes as data
/// arrives; smoltcp 0.14 then drops what was sent between the two edges and the
/// acknowledgement it carries, and a connection that is full in both directions
/// stands still until it times out (`netstack/tests.rs` has the case).
const RECEIVE_BUFFER_BYTES: usize = 65_535;
/// Data in flight, and as much again that waits. The system provides these pages when they are first touched, so an
/// idle watch takes few of them.
const SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Time limit for the opener to answer an accepted connection.
const EMBRYONIC_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time before a connection is probed, to notice that the other end is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// A connection without any answer for this long is closed; it survives an interruption of two minutes.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time for a released connection to deliver its written data.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);
/// Ports of outgoing connections (RFC 6335).
const EPHEMERAL_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;

/// One connection. Its holder must return it with [`Netstack::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    handle: SocketHandle,
    ports: Ports,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ports {
    local: u16,
    remote: u16,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    PortZero,
    TooManyConnections,
}

#[derive(Default)]
struct AcceptQueue {
    ready: VecDeque<Connection>,
    waker: Option<Waker>,
}

struct Since {
    connection: Connection,
    since: Instant,
}

/// The TCP stack of one tunnel.
pub(super) struct Netstack {
    interface: Interface,
    device: TunnelDevice,
    sockets: SocketSet<'static>,
    open: BTreeMap<Ports, SocketHandle>,
    listeners: BTreeMap<u16, AcceptQueue>,
    embryonic: Vec<Since>,
    orphans: Vec<Since>,
    local: Ipv6Addr,
    remote: Ipv6Addr,
    next_port: u16,
    started: Instant,
    rejected_packets: u64,
}

impl Netstack {
    /// A stack with one local and one remote address. The seed must be random: initial sequence numbers and ports come
    /// from it.
    pub(super) fn new(local: Ipv6Addr, remote: Ipv6Addr, seed: u64, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut device = TunnelDevice::default();
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // The list has room for at least one address, and is empty here.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv6(local), 64));
        });
        let span = EPHEMERAL_PORTS.end() - EPHEMERAL_PORTS.start();
        Self {
            interface,
            device,
            sockets: SocketSet::new(Vec::new()),
            open: BTreeMap::new(),
            listeners: BTreeMap::new(),
            embryonic: Vec::new(),
            orphans: Vec::new(),
            local,
            remote,
            next_port: EPHEMERAL_PORTS.start() + (seed >> 32) as u16 % span,
            started: now,
            rejected_packets: 0,
        }
    }

    fn time(&self, now: Instant) -> smoltcp::time::Instant {
        let micros = now.saturating_duration_since(self.started).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// Connections in every state.
    pub(super) fn connections(&self) -> usize {
        self.open.len()
    }

    /// Packets from the tunnel that were rejected.
    pub(super) fn rejected_packets(&self) -> u64 {
        self.rejected_packets
    }

    /// Takes a packet that has come out of the tunnel.
    pub(super) fn receive(&mut self, packet: &[u8], now: Instant) {
        let Some(segment) = inner_packet::admit(packet, self.remote, self.local) else {
            self.rejected_packets += 1;
            return;
        };
        let expected = self.prepare(segment);
        self.device.place(packet);
        let time = self.time(now);
        self.interface.poll_ingress_single(time, &mut self.device, &mut self.sockets);
        if let Some(connection) = expected {
            if self.socket(connection).is_listening() {
                // The stack did not accept the SYN.
                self.remove(connection);
            } else {
                self.embryonic.push(Since { connection, since: now });
            }
        }
        self.promote(now);
    }

    /// Makes the socket for a SYN to an exposed port.
    fn prepare(&mut self, segment: Segment) -> Option<Connection> {
        let ports = Ports { local: segment.to_port, remote: segment.from_port };
        if !segment.opens
            || !self.listeners.contains_key(&ports.local)
            || self.open.contains_key(&ports)
            || self.open.len() >= MAX_CONNECTIONS
        {
            return None;
        }
        let mut socket = new_socket(EMBRYONIC_TIMEOUT);
        socket.listen((IpAddress::Ipv6(self.local), ports.local)).ok()?;
        Some(self.insert(socket, ports))
    }

    /// Hands connections whose opener has answered to their listener.
    fn promote(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(entry) = self.embryonic.get(index) {
            let (connection, since) = (entry.connection, entry.since);
            let state = self.socket(connection).state();
            match state {
                State::Listen | State::SynReceived | State::SynSent => {
                    index += 1;
                    continue;
                }
                State::Closed => self.orphans.push(Since { connection, since }),
                _ => match self.listeners.get_mut(&connection.ports.local) {
                    Some(listener) => {
                        listener.ready.push_back(connection);
                        listener.waker.take().into_iter().for_each(Waker::wake);
                        let socket = self.socket(connection);
                        socket.set_timeout(Some(TIMEOUT.into()));
                        socket.set_keep_alive(Some(KEEP_ALIVE.into()));
                    }
                    None => self.abort(connection, now),
                },
            }
            self.embryonic.swap_remove(index);
        }
    }

    /// Lets the sockets send while the queue has room. True if they may have more to send.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        let time = self.time(now);
        while self.device.has_room() {
            let result = self.interface.poll_egress(time, &mut self.device, &mut self.sockets);
            if result == PollResult::None {
                self.reap(now);
                return false;
            }
        }
        true
    }

    /// The next packet for the tunnel; return its buffer with [`recycle`](Self::recycle).
    pub(super) fn next_packet(&mut self) -> Option<Vec<u8>> {
        self.device.next_outbound()
    }

    /// Takes back the buffer of a packet.
    pub(super) fn recycle(&mut self, packet: Vec<u8>) {
        self.device.recycle(packet);
    }

    /// When [`Self::transmit`] next has something to do, if nothing arrives.
    pub(super) fn wake_at(&mut self, now: Instant) -> Option<Instant> {
        let time = self.time(now);
        let delay = self.interface.poll_delay(time, &self.sockets)?;
        Some(now + Duration::from_micros(delay.total_micros()))
    }

    /// Removes finished connections that nobody holds.
    fn reap(&mut self, now: Instant) {
        self.promote(now);
        let mut index = 0;
        while let Some(entry) = self.orphans.get(index) {
            let connection = entry.connection;
            let old = now.saturating_duration_since(entry.since) > ORPHAN_TIMEOUT;
            let socket = self.socket(connection);
            let over = match socket.state() {
                // A reset may still be on its way out.
                State::Closed => old || socket.remote_endpoint().is_none(),
                // The port of an outgoing connection is reused only after thousands of others, so TIME-WAIT is not
                // needed.
                State::TimeWait => true,
                _ => false,
            };
            if over {
                self.orphans.swap_remove(index);
                self.remove(connection);
                continue;
            }
            // Nobody will read arriving data: reset the connection, as the kernel does.
            if old || socket.can_recv() {
                socket.abort();
            }
            index += 1;
        }
    }

    fn insert(&mut self, socket: Socket<'static>, ports: Ports) -> Connection {
        let handle = self.sockets.add(socket);
        self.open.insert(ports, handle);
        Connection { handle, ports }
    }

    fn remove(&mut self, connection: Connection) {
        self.open.remove(&connection.ports);
        self.sockets.remove(connection.handle);
    }

    /// The socket of a connection that has not been released.
    pub(super) fn socket(&mut self, connection: Connection) -> &mut Socket<'static> {
        self.sockets.get_mut(connection.handle)
    }

    /// Starts to open a connection to a port of the other side.
    pub(super) fn connect(&mut self, port: u16) -> Result<Connection, OpenError> {
        if port == 0 {
            return Err(OpenError::PortZero);
        }
        if self.open.len() >= MAX_CONNECTIONS {
            return Err(OpenError::TooManyConnections);
        }
        let local = self.free_port(port);
        let mut socket = new_socket(TIMEOUT);
        socket.set_keep_alive(Some(KEEP_ALIVE.into()));
        let to = (IpAddress::Ipv6(self.remote), port);
        let from = (IpAddress::Ipv6(self.local), local);
        socket.connect(self.interface.context(), to, from).map_err(|_| OpenError::PortZero)?;
        Ok(self.insert(socket, Ports { local, remote: port }))
    }

    /// There are 64 times more ports than connections, so one is free.
    fn free_port(&mut self, remote: u16) -> u16 {
        loop {
            let local = self.next_port;
            self.next_port = if local == *EPHEMERAL_PORTS.end() { *EPHEMERAL_PORTS.start() } else { local + 1 };
            if !self.open.contains_key(&Ports { local, remote }) && !self.listeners.contains_key(&local) {
                return local;
            }
        }
    }

    /// Exposes a port; false when it already is.
    pub(super) fn listen(&mut self, port: u16) -> bool {
        if self.listeners.contains_key(&port) {
            return false;
        }
        self.listeners.insert(port, AcceptQueue::default());
        true
    }

    /// Closes a port and resets its connections that were not accepted.
    pub(super) fn unlisten(&mut self, port: u16, now: Instant) {
        if let Some(listener) = self.listeners.remove(&port) {
            listener.ready.into_iter().for_each(|connection| self.abort(connection, now));
            listener.waker.into_iter().for_each(Waker::wake);
        }
    }

    /// The next connection to an exposed port.
    pub(super) fn poll_accept(&mut self, port: u16, context: &mut Context<'_>) -> Poll<Option<Connection>> {
        let Some(listener) = self.listeners.get_mut(&port) else {
            return Poll::Ready(None);
        };
        if let Some(connection) = listener.ready.pop_front() {
            return Poll::Ready(Some(connection));
        }
        listener.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns a connection: written data is still delivered.
    pub(super) fn release(&mut self, connection: Connection, now: Instant) {
        let socket = self.socket(connection);
        if socket.can_recv() {
            socket.abort();
        } else {
            socket.close();
        }
        self.orphans.push(Since { connection, since: now });
    }

    /// Resets a connection.
    pub(super) fn abort(&mut self, connection: Connection, now: Instant) {
        self.socket(connection).abort();
        self.orphans.push(Since { connection, since: now });
    }

    /// Resets all connections and wakes their waiters, at the end of the tunnel.
    pub(super) fn abort_all(&mut self) {
        for handle in self.open.values() {
            self.sockets.get_mut::<Socket<'_>>(*handle).abort();
        }
        for listener in self.listeners.values_mut() {
            listener.waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

fn new_socket(timeout: Duration) -> Socket<'static> {
    let receive = SocketBuffer::new(vec![0; RECEIVE_BUFFER_BYTES]);
    let send = SocketBuffer::new(vec![0; SEND_BUFFER_BYTES]);
    let mut socket = Socket::new(receive, send);
    socket.set_congestion_control(CongestionControl::Cubic);
    // The writers are TLS stacks, which write whole records.
    socket.set_nagle_enabled(false);
    socket.set_timeout(Some(timeout.into()));
    socket
}

#[cfg(test)]
mod tests;
