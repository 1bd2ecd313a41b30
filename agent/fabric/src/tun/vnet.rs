//! The header before each packet of a network device with offloads: `virtio_net_hdr` of Linux, in native byte order.

use super::tcp_header::TCP_CHECKSUM;

/// Length of the header.
pub(super) const VNET_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Flag beside a type: the flow uses explicit congestion notification.
const GSO_ECN: u8 = 0x80;

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    /// One packet.
    Whole,
    /// Many TCP segments.
    Tcp,
    /// Many UDP datagrams.
    Udp,
}

/// The fields of the header that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VnetHeader {
    pub(super) offload: Offload,
    /// Payload bytes of each segment except the last.
    pub(super) segment: usize,
    /// Start of the transport header and offset of the checksum in it, if the checksum is not computed yet.
    pub(super) checksum: Option<(usize, usize)>,
}

impl VnetHeader {
    /// Reads a header; `None` for an offload that was not requested.
    pub(super) fn read(bytes: &[u8; VNET_BYTES]) -> Option<Self> {
        let word = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let offload = match bytes[1] & !GSO_ECN {
            GSO_NONE => Offload::Whole,
            GSO_TCP4 | GSO_TCP6 => Offload::Tcp,
            GSO_UDP => Offload::Udp,
            _ => return None,
        };
        let checksum = (bytes[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8)));
        Some(Self { offload, segment: word(4), checksum })
    }

    /// The header of a packet that contains many segments of one TCP flow.
    pub(super) fn tcp(is_ipv6: bool, headers: usize, segment: usize, transport: usize) -> [u8; VNET_BYTES] {
        let mut bytes = [0; VNET_BYTES];
        bytes[0] = NEEDS_CHECKSUM;
        bytes[1] = if is_ipv6 { GSO_TCP6 } else { GSO_TCP4 };
        let words = [headers as u16, segment as u16, transport as u16, TCP_CHECKSUM as u16];
        for (place, word) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }
}
