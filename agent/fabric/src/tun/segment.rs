//! Splits a packet of up to 64 KiB from the network device as a network card would: into segments that fit the tunnel,
//! each with its own checksums.
//!
//! `recv_multiple` of tun-rs 2.8.16 drops a packet of more segments than it has buffers, and sends a UDP checksum of zero
//! unchanged, which IPv6 forbids: one such datagram in 65,536 would be lost. `coalesce` says what it costs.

use super::checksum;
use super::tcp_header::{CWR, FIN, PSH, TCP, TCP_CHECKSUM, TCP_HEADER_BYTES};
use super::vnet::{Offload, VnetHeader};

/// UDP's protocol number in an IP header.
pub(super) const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
/// Offset of UDP's checksum.
pub(super) const UDP_CHECKSUM: usize = 6;
/// Space for a segment and its headers.
pub(super) const SEGMENT_BYTES: usize = 9216;

/// A packet that contradicts its own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Calls `emit` for each packet that `packet` represents, in order.
pub(super) fn split(
    header: VnetHeader,
    packet: &mut [u8],
    scratch: &mut [u8; SEGMENT_BYTES],
    mut emit: impl FnMut(&[u8]),
) -> Result<(), Malformed> {
    let shortest = match packet.first().map(|first| first >> 4) {
        Some(4) => 20,
        Some(6) => 40,
        _ => return Err(Malformed),
    };
    if header.offload == Offload::Whole {
        if let Some((start, offset)) = header.checksum {
            complete(packet, start, offset)?;
        }
        emit(packet);
        return Ok(());
    }
    let (transport, _) = header.checksum.filter(|(start, _)| *start >= shortest).ok_or(Malformed)?;
    let headers = transport + transport_header(header.offload, packet.get(transport..).ok_or(Malformed)?)?;
    if header.segment == 0 || headers >= packet.len() || headers + header.segment > SEGMENT_BYTES {
        return Err(Malformed);
    }
    let (head, payload) = packet.split_at(headers);
    let first = First::of(head, transport, header.offload);
    scratch[..headers].copy_from_slice(head);
    let last = payload.len().div_ceil(header.segment) - 1;
    for (index, part) in payload.chunks(header.segment).enumerate() {
        scratch[headers..headers + part.len()].copy_from_slice(part);
        let segment = &mut scratch[..headers + part.len()];
        first.adapt(segment, SegmentPosition { index, offset: index * header.segment, is_last: index == last });
        emit(segment);
    }
    Ok(())
}

/// Completes the checksum that the sender left out: the field contains the sum of the pseudo header.
fn complete(packet: &mut [u8], start: usize, offset: usize) -> Result<(), Malformed> {
    let at = start + offset;
    if packet.len() < at + 2 {
        return Err(Malformed);
    }
    let mut made = checksum::finish(checksum::add(&packet[start..], 0));
    if offset == UDP_CHECKSUM && made == [0, 0] {
        // Zero means no checksum.
        made = [0xff; 2];
    }
    packet[at..at + 2].copy_from_slice(&made);
    Ok(())
}

fn transport_header(offload: Offload, transport: &[u8]) -> Result<usize, Malformed> {
    match offload {
        Offload::Udp => Ok(UDP_HEADER_BYTES),
        _ => {
            let length = usize::from(transport.get(12).ok_or(Malformed)? >> 4) * 4;
            (length >= TCP_HEADER_BYTES).then_some(length).ok_or(Malformed)
        }
    }
}

/// Where a segment is among those of its packet.
#[derive(Clone, Copy)]
struct SegmentPosition {
    index: usize,
    /// Payload bytes before it.
    offset: usize,
    is_last: bool,
}

/// The header fields that differ between segments, with the whole packet's values.
struct First {
    transport: usize,
    offload: Offload,
    identification: u16,
    sequence: u32,
    flags: u8,
}

impl First {
    fn of(head: &[u8], transport: usize, offload: Offload) -> Self {
        let tcp = offload == Offload::Tcp;
        let byte = |at: usize| head[transport + at];
        Self {
            transport,
            offload,
            identification: u16::from_be_bytes([head[4], head[5]]),
            sequence: if tcp { u32::from_be_bytes([byte(4), byte(5), byte(6), byte(7)]) } else { 0 },
            flags: if tcp { byte(13) } else { 0 },
        }
    }

    /// Turns a copy of the headers with a part of the payload into the segment at `position`.
    fn adapt(&self, segment: &mut [u8], position: SegmentPosition) {
        let length = segment.len();
        if segment[0] >> 4 == 4 {
            segment[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            segment[4..6].copy_from_slice(&self.identification.wrapping_add(position.index as u16).to_be_bytes());
            segment[10..12].fill(0);
            let sum = checksum::add(&segment[..self.transport], 0);
            segment[10..12].copy_from_slice(&checksum::finish(sum));
        } else {
            segment[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
        let protocol = if self.offload == Offload::Udp { UDP } else { TCP };
        let length = length - self.transport;
        let pseudo = checksum::pseudo_header(&segment[checksum::addresses(segment)], protocol, length);
        let transport = &mut segment[self.transport..];
        let field = match self.offload {
            Offload::Udp => {
                transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
                UDP_CHECKSUM
            }
            _ => {
                let sequence = self.sequence.wrapping_add(position.offset as u32);
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                let only_last = if position.is_last { 0 } else { FIN | PSH };
                let only_first = if position.index == 0 { 0 } else { CWR };
                transport[13] = self.flags & !only_last & !only_first;
                TCP_CHECKSUM
            }
        };
        transport[field..field + 2].fill(0);
        let mut made = checksum::finish(checksum::add(transport, pseudo));
        if protocol == UDP && made == [0, 0] {
            made = [0xff; 2];
        }
        transport[field..field + 2].copy_from_slice(&made);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::packets::{Tcp, V4, V6, udp};
    use super::*;

    fn segments(header: VnetHeader, mut packet: Vec<u8>) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut found = Vec::new();
        split(header, &mut packet, &mut [0; SEGMENT_BYTES], |segment| found.push(segment.to_vec()))?;
        Ok(found)
    }

    fn tcp_header(transport: usize, segment: usize) -> VnetHeader {
        VnetHeader { offload: Offload::Tcp, segment, checksum: Some((transport, TCP_CHECKSUM)) }
    }

    #[test]
    fn tcp_is_split_into_what_a_sender_would_have_sent() {
        for (ends, transport) in [(V4, 20), (V6, 40)] {
            let payload: Vec<u8> = (0..5000_u32).map(|byte| (byte * 7) as u8).collect();
            let flags = FIN | PSH | CWR | 0x10;
            let whole = Tcp { flags, sequence: u32::MAX - 1000, ..Tcp::new(ends, &payload) };
            let found = segments(tcp_header(transport, 1380), whole.packet()).unwrap();
            let expected: Vec<_> = (payload.chunks(1380).enumerate())
                .map(|(index, part)| {
                    let flags = match index {
                        0 => CWR | 0x10,
                        3 => FIN | PSH | 0x10,
                        _ => 0x10,
                    };
                    let sequence = whole.sequence.wrapping_add(1380 * index as u32);
                    let identification = whole.identification + index as u16;
                    Tcp { flags, sequence, identification, ..Tcp::new(ends, part) }.packet()
                })
                .collect();
            assert_eq!(found, expected);
            assert!(found.iter().all(|segment| checksum::tcp_is_intact(segment, transport)));
        }
    }

    #[test]
    fn udp_is_split_into_datagrams() {
        for (ends, transport) in [(V4, 20), (V6, 40)] {
            let payload: Vec<u8> = (0..2500_u32).map(|byte| byte as u8).collect();
            let header = VnetHeader { offload: Offload::Udp, segment: 1000, checksum: Some((transport, UDP_CHECKSUM)) };
            let found = segments(header, udp(ends, 9, &payload)).unwrap();
            let expected: Vec<_> =
                payload.chunks(1000).zip(9..).map(|(part, identification)| udp(ends, identification, part)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_missing_checksum_is_computed() {
        let packet = Tcp::new(V4, b"some data").packet();
        let mut partial = packet.clone();
        let pseudo = checksum::pseudo_header(&packet[12..20], TCP, packet.len() - 20);
        partial[36..38].copy_from_slice(&checksum::fold(pseudo));
        let header = VnetHeader { offload: Offload::Whole, segment: 0, checksum: Some((20, TCP_CHECKSUM)) };
        assert_eq!(segments(header, partial), Ok(vec![packet]));
    }

    #[test]
    fn a_packet_that_contradicts_its_header_is_refused() {
        let packet = Tcp::new(V4, &[1; 3000]).packet();
        assert_eq!(segments(tcp_header(20, 0), packet.clone()), Err(Malformed));
        assert_eq!(segments(tcp_header(20, SEGMENT_BYTES), packet.clone()), Err(Malformed));
        assert_eq!(segments(tcp_header(0, 1000), packet.clone()), Err(Malformed));
        assert_eq!(segments(tcp_header(4000, 1000), packet.clone()), Err(Malformed));
        for length in 0..40 {
            assert_eq!(segments(tcp_header(20, 1000), packet[..length].to_vec()), Err(Malformed), "{length}");
        }
        let beyond = VnetHeader { offload: Offload::Whole, segment: 0, checksum: Some((2990, 61)) };
        assert_eq!(segments(beyond, packet), Err(Malformed));
    }
}
