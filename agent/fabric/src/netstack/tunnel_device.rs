//! The device smoltcp believes it drives: one packet in, a short queue out.

use std::collections::VecDeque;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// The largest packet inside a tunnel.
///
/// 1280 is what IPv6 asks of every link. With WireGuard's 80 bytes around it a
/// datagram has 1360, which also fits where an agent usually lives: in a pod,
/// whose own overlay has taken 50 to 130 bytes of 1500 already. The usual 1420
/// would be fragmented there, and fragments are what middleboxes drop.
pub(super) const TUNNEL_MTU: usize = 1280;

/// Packets that wait to be sealed. smoltcp keeps what does not fit in its
/// sockets' buffers, so this bounds the time a lock is held, not throughput.
const OUTBOUND_LIMIT: usize = 64;

/// Both ends of the queue between netstack and tunnel. Packet buffers are
/// kept and used again.
#[derive(Default)]
pub(super) struct TunnelDevice {
    inbound: Vec<u8>,
    has_inbound: bool,
    outbound: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl TunnelDevice {
    /// Places the packet that the next poll of the interface processes.
    pub(super) fn place(&mut self, packet: &[u8]) {
        self.inbound.clear();
        self.inbound.extend_from_slice(packet);
        self.has_inbound = true;
    }

    /// Whether the sockets may send another packet.
    pub(super) fn has_room(&self) -> bool {
        self.outbound.len() < OUTBOUND_LIMIT
    }

    /// The next packet to seal and send; give it back with [`Self::recycle`].
    pub(super) fn next_outbound(&mut self) -> Option<Vec<u8>> {
        self.outbound.pop_front()
    }

    /// Takes back a packet buffer.
    pub(super) fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < OUTBOUND_LIMIT {
            self.spare.push(packet);
        }
    }
}

impl Device for TunnelDevice {
    type RxToken<'a> = Inbound<'a>;
    type TxToken<'a> = Outbound<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Inbound<'_>, Outbound<'_>)> {
        if !std::mem::take(&mut self.has_inbound) {
            return None;
        }
        // A reply is a reset or an acknowledgement, at most one a packet, and
        // the queue is emptied after every batch of packets.
        Some((Inbound(&self.inbound), Outbound { queue: &mut self.outbound, spare: &mut self.spare }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outbound<'_>> {
        let room = self.has_room();
        room.then_some(Outbound { queue: &mut self.outbound, spare: &mut self.spare })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = TUNNEL_MTU;
        // Poly1305 has already vouched for what arrives; sums are still
        // written, for the other side may be a kernel that checks them.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

/// The packet that has arrived.
pub(super) struct Inbound<'a>(&'a [u8]);

impl RxToken for Inbound<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for one packet to leave.
pub(super) struct Outbound<'a> {
    queue: &'a mut VecDeque<Vec<u8>>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl TxToken for Outbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(TUNNEL_MTU));
        packet.resize(len, 0);
        let result = f(&mut packet);
        // Replies may come on top of a full queue, up to twice its limit;
        // beyond that TCP sends again what is lost here.
        if self.queue.len() < 2 * OUTBOUND_LIMIT {
            self.queue.push_back(packet);
        }
        result
    }
}
