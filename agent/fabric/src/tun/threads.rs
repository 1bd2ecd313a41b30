//! The two threads that move packets: one for the network device, one for the socket. Each sleeps in `poll` while there
//! is nothing to do.
//!
//! ```text
//! device ─▶ translate ─▶ split ─▶ seal ─▶ UDP segmentation offload           (thread 1)
//! UDP receive offload ─▶ open ─▶ check source ─▶ translate ─▶ join ─▶ device (thread 2)
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use super::allowed::{self, SharedRouteTable};
use super::coalesce::Coalescer;
use super::segment::{self, SEGMENT_BYTES};
use super::tun_device::{READ_BYTES, TunDevice};
use super::udp::{Inbox, Outbox, UdpLink};
use super::vnet::{VNET_BYTES, VnetHeader};
use crate::demux::{self, Message};
use crate::limiter::HandshakeLimiter;
use crate::peer::Peer;
use crate::registry::SharedRegistry;

/// State of both threads.
pub(super) struct Shared {
    pub(super) device: Arc<TunDevice>,
    pub(super) link: Arc<UdpLink>,
    pub(super) table: SharedRouteTable<Arc<Peer>>,
    pub(super) registry: SharedRegistry,
    /// Becomes readable when the threads must end.
    pub(super) stop: Arc<OwnedFd>,
}

impl Shared {
    /// Waits until `source` is readable; false when the thread must end.
    fn wait(&self, source: &impl AsFd) -> bool {
        let mut fds = [PollFd::new(source, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => fds[1].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => true,
            Err(error) => {
                tracing::error!(%error, "the fabric cannot wait for packets");
                false
            }
        }
    }
}

/// From the network device into the tunnels.
pub(super) fn send(shared: &Shared) {
    let mut packet = vec![0; READ_BYTES];
    let mut scratch = Box::new([0; SEGMENT_BYTES]);
    let mut outbox = Outbox::new();
    loop {
        match shared.device.read(&mut packet) {
            Ok(length) => {
                seal(shared, &mut packet[..length], &mut scratch, &mut outbox);
                if outbox.has_enough() {
                    outbox.flush(&shared.link);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                outbox.flush(&shared.link);
                if !shared.wait(&*shared.device) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::error!(%error, "the fabric's network device failed");
                return;
            }
        }
    }
}

fn seal(shared: &Shared, packet: &mut [u8], scratch: &mut [u8; SEGMENT_BYTES], outbox: &mut Outbox) {
    let Some((header, packet)) = packet.split_first_chunk_mut::<VNET_BYTES>() else { return };
    let Some(header) = VnetHeader::read(header) else { return };
    let table = Arc::clone(&shared.table.read().unwrap_or_else(PoisonError::into_inner));
    let is_up = |peer: &Arc<Peer>| peer.peek(|tunnel| tunnel.outlet().is_some());
    let Some(peer) = allowed::destination(packet).and_then(|to| table.lookup(to, is_up)) else { return };
    if let Some(translation) = peer.kernel().and_then(|kernel| kernel.translation.as_ref()) {
        translation.leave(header, packet);
    }
    peer.seal(|tunnel, to| {
        let split = segment::split(header, packet, scratch, |segment| {
            if let Some(length) = tunnel.seal(segment, outbox.room()) {
                outbox.push(to, length);
            }
        });
        if split.is_err() {
            tracing::trace!(?header, "the network device gave a packet that contradicts itself");
        }
    });
}

/// From the tunnels to the network device.
pub(super) fn receive(shared: &Shared) {
    let mut inbox = Inbox::new();
    let mut arrivals = Arrivals::default();
    let mut limiter = HandshakeLimiter::new(Instant::now());
    loop {
        match inbox.receive(&shared.link) {
            Ok(count) => {
                for arrived in inbox.arrived(count) {
                    let mut datagrams = arrived.bytes.chunks(arrived.size).peekable();
                    while let Some(first) = datagrams.next() {
                        let Some((message, peer)) = shared.registry.route(first) else { continue };
                        let from = arrived.from;
                        if matches!(message, Message::Initiation | Message::Response)
                            && !limiter.admit(from.ip(), Instant::now())
                        {
                            continue;
                        }
                        let index = demux::receiver_index(first, message);
                        let alike = |datagram: &&[u8]| {
                            message == Message::Data
                                && Message::of(datagram) == Some(Message::Data)
                                && demux::receiver_index(datagram, Message::Data) == index
                        };
                        let more = std::iter::from_fn(|| datagrams.next_if(alike));
                        let run = std::iter::once(first).chain(more);
                        peer.receive_run(message, run, from, &*shared.link, |packet| {
                            arrivals.admit(&peer, packet, &shared.device)
                        });
                    }
                }
                arrivals.joined.drain(|packet| write(&shared.device, packet));
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // Here the kernel reports refusals of datagrams sent earlier.
                    tracing::trace!(%error, "datagrams could not be received");
                }
                if !shared.wait(&*shared.link) {
                    return;
                }
            }
        }
    }
}

/// Decrypted packets on their way to the device.
#[derive(Default)]
struct Arrivals {
    joined: Coalescer,
    /// Space for a packet that is translated.
    translated: Vec<u8>,
}

impl Arrivals {
    /// Accepts a decrypted packet if its source belongs to the peering.
    fn admit(&mut self, peer: &Peer, packet: &[u8], device: &TunDevice) -> bool {
        let Some((source, kernel)) = allowed::source(packet).zip(peer.kernel()) else { return false };
        if !kernel.allowed().admits(source) {
            return false;
        }
        if self.joined.is_full() {
            self.joined.drain(|packet| write(device, packet));
        }
        match &kernel.translation {
            None => self.joined.push(packet),
            Some(translation) => {
                self.translated.clear();
                self.translated.extend_from_slice(packet);
                translation.enter(&mut self.translated);
                self.joined.push(&self.translated);
            }
        }
        true
    }
}

fn write(device: &TunDevice, packet: &[u8]) {
    if let Err(error) = device.write(packet) {
        tracing::trace!(%error, length = packet.len(), "the kernel refused a packet");
    }
}
