//! The network device of smoltcp's interface: one packet in, a short queue out.

use std::collections::VecDeque;

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// The largest packet inside a tunnel.
///
/// IPv6 requires 1280 bytes on every link. With WireGuard's 80 bytes a datagram has 1360, which also fits the network
/// of a pod, where an agent usually runs and whose overlay takes 50 to 130 of 1500 bytes. The usual 1420 would be
/// fragmented there, and middleboxes drop fragments.
pub(super) const TUNNEL_MTU: usize = 1280;

/// Packets that wait to be sealed. smoltcp keeps further ones in its sockets' buffers, so this limits how long a lock
/// is held, not throughput.
const OUTBOUND_LIMIT: usize = 64;

/// Both ends of the queue between netstack and tunnel. Packet buffers are reused.
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
        // Poly1305 has authenticated arriving packets, so their checksums are not verified. Checksums are still
        // written, because the other side may be a kernel that verifies them.
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
        // Replies may extend a full queue to twice its limit; TCP retransmits packets that are dropped beyond that.
        if self.queue.len() < 2 * OUTBOUND_LIMIT {
            self.queue.push_back(packet);
        }
        result
    }
}
