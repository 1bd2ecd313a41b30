//! One peering's tunnel: WireGuard outside, the TCP stack inside.
//!
//! Nothing here blocks. Datagrams and the time go in; datagrams go to a [`Wire`]; [`Tunnel::service`] returns when it
//! must be called again. Only boringtun reads a clock itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use defguard_boringtun::noise::{Tunn, TunnResult};

use super::demux::{self, Message};
use super::mode::MAX_MTU;
use super::netstack::Netstack;
use super::path::Path;
use super::wire::{Sent, Wire};
use super::{PresharedKey, WireguardKey, WireguardPublicKey};

/// Larger than any datagram of the fabric; a longer one is truncated and then refused.
pub(super) const DATAGRAM_BYTES: usize = 2048;
/// The same for a network device with the largest MTU.
const MAX_DATAGRAM_BYTES: usize = MAX_MTU as usize + SEAL_BYTES;
/// Bytes that WireGuard adds to a packet: its header and its tag.
pub(super) const SEAL_BYTES: usize = 32;
/// How often boringtun's timers are checked; they last seconds.
const TIMER_INTERVAL: Duration = Duration::from_millis(200);
/// Most packets that boringtun queues while it has no session.
const MAX_HELD_BACK_PACKETS: usize = 256;

/// A completed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// When it was completed.
    pub at: SystemTime,
    /// The round trip it took, if this side could measure it.
    pub rtt: Option<Duration>,
}

/// When a tunnel must be serviced again.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextService {
    /// At this time at the latest.
    pub(super) at: Instant,
    /// Also as soon as the socket accepts datagrams again.
    pub(super) blocked: bool,
}

/// The keys of a tunnel: this side's, the other side's, and the pre-shared one.
pub(super) struct TunnelKeys<'a> {
    pub(super) local: &'a WireguardKey,
    pub(super) remote: WireguardPublicKey,
    pub(super) preshared: &'a PresharedKey,
}

/// A packet that was sealed when the socket was full.
struct Stalled {
    to: SocketAddr,
    length: usize,
}

/// A handshake message that was sent, to time its answer.
#[derive(Clone, Copy)]
struct SentHandshake {
    sender_index: u32,
    at: Instant,
}

/// The state of one tunnel.
pub(super) struct Tunnel {
    tunn: Tunn,
    /// Absent where the kernel's stack is used.
    stack: Option<Netstack>,
    path: Path,
    sealed: Box<[u8]>,
    opened: Box<[u8]>,
    stalled: Option<Stalled>,
    next_tick: Instant,
    /// The last two initiations; boringtun accepts an answer to either.
    initiations: [Option<SentHandshake>; 2],
    /// The response that its initiator has not confirmed yet.
    response: Option<SentHandshake>,
    handshake: Option<Handshake>,
    closed: bool,
    rejected_packets: u64,
}

impl Tunnel {
    /// `number` is the peer's number in the demux; `stack` receives the packets, or is absent if the kernel does.
    pub(super) fn new(
        keys: &TunnelKeys<'_>,
        number: u32,
        keepalive: Duration,
        path: Path,
        stack: Option<Netstack>,
        now: Instant,
    ) -> Self {
        let seconds = u16::try_from(keepalive.as_secs().max(1)).unwrap_or(u16::MAX);
        let tunn = Tunn::new(
            keys.local.to_secret(),
            keys.remote.to_dalek(),
            Some(*keys.preshared.to_bytes()),
            Some(seconds),
            number,
            None,
        );
        let room = if stack.is_some() { DATAGRAM_BYTES } else { MAX_DATAGRAM_BYTES };
        Self {
            tunn,
            stack,
            path,
            sealed: vec![0; DATAGRAM_BYTES].into_boxed_slice(),
            opened: vec![0; room].into_boxed_slice(),
            stalled: None,
            next_tick: now,
            initiations: [None; 2],
            response: None,
            handshake: None,
            closed: false,
            rejected_packets: 0,
        }
    }

    /// The tunnel's own stack; only connections of a tunnel that has one ask for it.
    pub(super) fn stack(&mut self) -> &mut Netstack {
        self.stack.as_mut().expect("only tunnels with a netstack have its connections")
    }

    /// TCP connections of this tunnel's own stack.
    pub(super) fn connections(&self) -> usize {
        self.stack.as_ref().map_or(0, Netstack::connections)
    }

    /// Authentic packets that were rejected.
    pub(super) fn rejected_packets(&self) -> u64 {
        self.rejected_packets + self.stack.as_ref().map_or(0, Netstack::rejected_packets)
    }

    pub(super) fn path(&mut self) -> &mut Path {
        &mut self.path
    }

    /// Bytes received and sent, with WireGuard's headers, without handshakes.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let (_, sent, received, _, _) = self.tunn.stats();
        (received as u64, sent as u64)
    }

    /// The last handshake, whether or not its session is still valid.
    pub(super) fn last_handshake(&self) -> Option<Handshake> {
        self.handshake
    }

    /// The handshake of the session in force.
    pub(super) fn live_handshake(&self) -> Option<Handshake> {
        self.handshake.filter(|_| !self.closed && self.has_session())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends everything; the next service sends the resets.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.stack.iter_mut().for_each(Netstack::abort_all);
    }

    fn has_session(&self) -> bool {
        self.tunn.time_since_last_handshake().is_some()
    }

    /// Handles a datagram for this tunnel, and returns whether it was authentic. A packet in it goes to `deliver`,
    /// which returns whether the other side may send it.
    pub(super) fn receive(
        &mut self,
        message: Message,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        wire: &impl Wire,
        deliver: impl FnOnce(&mut Option<Netstack>, &[u8]) -> bool,
    ) -> bool {
        if self.closed || datagram.len() > self.opened.len() {
            return false;
        }
        let mut reply = [0; demux::MAX_HANDSHAKE_BYTES];
        match self.tunn.decapsulate(Some(from.ip()), datagram, &mut self.opened) {
            TunnResult::Err(error) => {
                tracing::trace!(%from, ?error, "datagram refused");
                return false;
            }
            TunnResult::WriteToTunnelV6(packet, _) | TunnResult::WriteToTunnelV4(packet, _) => {
                self.rejected_packets += u64::from(!deliver(&mut self.stack, packet));
            }
            TunnResult::WriteToNetwork(answer) => {
                let length = answer.len().min(reply.len());
                reply[..length].copy_from_slice(&answer[..length]);
                if !self.answer(&reply[..length], from, now, wire) {
                    return false;
                }
            }
            TunnResult::Done => {}
        }
        self.authenticated(message, datagram, from, now, wire);
        true
    }

    /// The destination of sealed packets, if there is a session.
    pub(super) fn outlet(&self) -> Option<SocketAddr> {
        self.path.endpoint().filter(|_| !self.closed && self.has_session())
    }

    /// Seals a packet of the kernel into `room`; there must be a session. Returns the datagram's length, or `None` if
    /// there is no room.
    pub(super) fn seal(&mut self, packet: &[u8], room: &mut [u8]) -> Option<usize> {
        if room.len() < packet.len() + SEAL_BYTES {
            return None;
        }
        match self.tunn.encapsulate(packet, room) {
            TunnResult::WriteToNetwork(datagram) => Some(datagram.len()),
            _ => None,
        }
    }

    /// Sends boringtun's immediate answer. False for a cookie, which goes to anybody who knows the public key.
    fn answer(&mut self, reply: &[u8], to: SocketAddr, now: Instant, wire: &impl Wire) -> bool {
        wire.send(to, reply);
        match Message::of(reply) {
            Some(Message::Cookie) => return false,
            Some(Message::Response) => {
                self.response = demux::sender_index(reply).map(|sender_index| SentHandshake { sender_index, at: now });
            }
            _ => {}
        }
        true
    }

    /// Updates session and path after an authentic datagram.
    fn authenticated(&mut self, message: Message, datagram: &[u8], from: SocketAddr, now: Instant, wire: &impl Wire) {
        let index = demux::receiver_index(datagram, message);
        match message {
            Message::Initiation => self.path.peer_initiated(now),
            Message::Cookie => {}
            Message::Response => {
                let sent = self.initiations.iter().flatten().find(|sent| Some(sent.sender_index) == index);
                let rtt = sent.map(|sent| now.saturating_duration_since(sent.at));
                self.completed(rtt, from, now);
                self.send_held_back(from, wire);
            }
            Message::Data => {
                if let Some(sent) = self.response.take_if(|sent| Some(sent.sender_index) == index) {
                    self.completed(Some(now.saturating_duration_since(sent.at)), from, now);
                    self.send_held_back(from, wire);
                }
                self.path.received(from, now);
            }
        }
    }

    fn completed(&mut self, rtt: Option<Duration>, from: SocketAddr, now: Instant) {
        self.handshake = Some(Handshake { at: SystemTime::now(), rtt });
        self.path.received(from, now);
        tracing::debug!(%from, ?rtt, "wireguard handshake complete");
    }

    /// Sends the keepalives that boringtun queued before there was a session.
    fn send_held_back(&mut self, to: SocketAddr, wire: &impl Wire) {
        for _ in 0..MAX_HELD_BACK_PACKETS {
            match self.tunn.decapsulate(None, &[], &mut self.opened) {
                TunnResult::WriteToNetwork(datagram) => wire.send(to, datagram),
                _ => break,
            };
        }
    }

    /// Handles timers and handshakes, and sends the stack's data.
    pub(super) fn service(&mut self, now: Instant, wire: &impl Wire) -> NextService {
        if now >= self.next_tick {
            self.next_tick = now + TIMER_INTERVAL;
            self.tick(now, wire);
        }
        if !self.closed {
            let target = if self.has_session() { self.path.attempt_if_silent(now) } else { self.path.attempt(now) };
            if let Some(to) = target {
                self.initiate(to, now, wire);
            }
        }
        let mut next = NextService { at: self.next_tick, blocked: false };
        let Some(endpoint) = self.path.endpoint().filter(|_| self.has_session()) else {
            // The stalled datagram was sealed for a session that is over.
            self.stalled = None;
            return next;
        };
        next.blocked = self.flush(endpoint, now, wire) == Sent::Full;
        if !next.blocked
            && let Some(at) = self.stack.as_mut().and_then(|stack| stack.wake_at(now))
        {
            next.at = next.at.min(at);
        }
        next
    }

    fn tick(&mut self, now: Instant, wire: &impl Wire) {
        let mut message = [0; demux::MAX_HANDSHAKE_BYTES];
        // An expired session is an error here; the path then starts a handshake.
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut message)
            && let Some(to) = self.path.endpoint()
        {
            note_initiation(&mut self.initiations, datagram, now);
            wire.send(to, datagram);
        }
    }

    fn initiate(&mut self, to: SocketAddr, now: Instant, wire: &impl Wire) {
        let mut message = [0; demux::MAX_HANDSHAKE_BYTES];
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.format_handshake_initiation(&mut message, true) {
            note_initiation(&mut self.initiations, datagram, now);
            tracing::trace!(%to, "starting a WireGuard handshake");
            wire.send(to, datagram);
        }
    }

    /// Seals and sends the stack's packets, until none is left or the socket is full. Connections' windows limit their
    /// number.
    fn flush(&mut self, endpoint: SocketAddr, now: Instant, wire: &impl Wire) -> Sent {
        if let Some(stalled) = self.stalled.take()
            && wire.send(stalled.to, &self.sealed[..stalled.length]) == Sent::Full
        {
            self.stalled = Some(stalled);
            return Sent::Full;
        }
        let Some(stack) = &mut self.stack else {
            return Sent::Done;
        };
        loop {
            let more = stack.transmit(now);
            while let Some(packet) = stack.next_packet() {
                let length = match self.tunn.encapsulate(&packet, &mut self.sealed) {
                    TunnResult::WriteToNetwork(datagram) => datagram.len(),
                    _ => 0,
                };
                stack.recycle(packet);
                self.path.sent(now);
                if length > 0 && wire.send(endpoint, &self.sealed[..length]) == Sent::Full {
                    self.stalled = Some(Stalled { to: endpoint, length });
                    return Sent::Full;
                }
            }
            if !more {
                return Sent::Done;
            }
        }
    }
}

fn note_initiation(initiations: &mut [Option<SentHandshake>; 2], datagram: &[u8], at: Instant) {
    if Message::of(datagram) == Some(Message::Initiation) {
        let sent = demux::sender_index(datagram).map(|sender_index| SentHandshake { sender_index, at });
        *initiations = [sent, initiations[0]];
    }
}
