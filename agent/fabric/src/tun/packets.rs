//! Packets for tests, built byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum;

/// Two addresses.
pub(super) type Ends = (IpAddr, IpAddr);

/// Two IPv4 addresses.
pub(super) const V4: Ends = (IpAddr::V4(Ipv4Addr::new(10, 1, 0, 5)), IpAddr::V4(Ipv4Addr::new(10, 2, 0, 9)));
/// Two IPv6 addresses.
pub(super) const V6: Ends =
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9)));

/// A TCP segment with a time stamp option.
#[derive(Clone)]
pub(super) struct Tcp<'a> {
    pub(super) ends: Ends,
    pub(super) from_port: u16,
    pub(super) sequence: u32,
    pub(super) identification: u16,
    pub(super) flags: u8,
    pub(super) stamp: u32,
    pub(super) payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    pub(super) fn new(ends: Ends, payload: &'a [u8]) -> Self {
        Self { ends, from_port: 4000, sequence: 1000, identification: 77, flags: 0x10, stamp: 5, payload }
    }

    pub(super) fn packet(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from_port.to_be_bytes());
        tcp.extend(6443_u16.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(99_u32.to_be_bytes());
        tcp.extend([8 << 4, self.flags, 0x02, 0x00, 0, 0, 0, 0]);
        tcp.extend([1, 1, 8, 10]);
        tcp.extend(self.stamp.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(self.payload);
        ip(self.ends, 6, self.identification, tcp, 16)
    }
}

/// A UDP datagram.
pub(super) fn udp(ends: Ends, identification: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::new();
    udp.extend(4000_u16.to_be_bytes());
    udp.extend(53_u16.to_be_bytes());
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    ip(ends, 17, identification, udp, 6)
}

fn ip(ends: Ends, protocol: u8, identification: u16, mut transport: Vec<u8>, checksum_at: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, 0]);
            packet.extend((20 + transport.len() as u16).to_be_bytes());
            packet.extend(identification.to_be_bytes());
            packet.extend([0x40, 0, 64, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let made = checksum::finish(checksum::add(&packet, 0));
            packet[10..12].copy_from_slice(&made);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((transport.len() as u16).to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        _ => panic!("two families"),
    }
    let pseudo = checksum::pseudo_header(&packet[checksum::addresses(&packet)], protocol, transport.len());
    let made = checksum::finish(checksum::add(&transport, pseudo));
    transport[checksum_at..checksum_at + 2].copy_from_slice(&made);
    packet.extend(transport);
    packet
}
