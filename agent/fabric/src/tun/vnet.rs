//! The header before each packet of a network device with offloads:
//! `virtio_net_hdr` of Linux, in the machine's byte order.

/// Its length.
pub(super) const VNET_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Set beside a type when the flow uses congestion notification.
const GSO_ECN: u8 = 0x80;
/// Where a TCP header has its checksum.
const TCP_CHECKSUM: u16 = 16;

/// What a packet stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    /// Itself.
    Whole,
    /// Many TCP segments.
    Tcp,
    /// Many UDP datagrams.
    Udp,
}

/// The header, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VnetHeader {
    pub(super) offload: Offload,
    /// Payload bytes of each segment but the last.
    pub(super) segment: usize,
    /// Where the transport header begins and where in it the checksum is, if
    /// the checksum has still to be made.
    pub(super) checksum: Option<(usize, usize)>,
}

impl VnetHeader {
    /// Reads a header; `None` for an offload that was not asked for.
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

    /// The header of a packet that stands for many segments of one TCP flow.
    pub(super) fn tcp(is_ipv6: bool, headers: usize, segment: usize, transport: usize) -> [u8; VNET_BYTES] {
        let mut bytes = [0; VNET_BYTES];
        bytes[0] = NEEDS_CHECKSUM;
        bytes[1] = if is_ipv6 { GSO_TCP6 } else { GSO_TCP4 };
        let words = [headers as u16, segment as u16, transport as u16, TCP_CHECKSUM];
        for (place, word) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }
}
