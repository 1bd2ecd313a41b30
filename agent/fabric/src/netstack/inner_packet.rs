//! Which packets may leave the tunnel: WireGuard's allowed IPs, and TCP only.

use std::net::Ipv6Addr;

use crate::tun::tcp_header::{ACK, RST, SYN, TCP, TCP_HEADER_BYTES};

const IPV6_HEADER_BYTES: usize = 40;

/// The fields of a segment that the stack needs before it processes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from_port: u16,
    pub(super) to_port: u16,
    /// It asks for a new connection.
    pub(super) opens: bool,
}

/// Reads a packet that claims to be TCP from `remote` to `local`. `None` for
/// everything else: other sources, other destinations, IPv4, other protocols,
/// extension headers.
pub(super) fn admit(packet: &[u8], remote: Ipv6Addr, local: Ipv6Addr) -> Option<Segment> {
    let (ip, tcp) = packet.split_first_chunk::<IPV6_HEADER_BYTES>()?;
    let tcp = tcp.first_chunk::<TCP_HEADER_BYTES>()?;
    let admitted = ip[0] >> 4 == 6 && ip[6] == TCP && ip[8..24] == remote.octets() && ip[24..40] == local.octets();
    admitted.then(|| Segment {
        from_port: u16::from_be_bytes([tcp[0], tcp[1]]),
        to_port: u16::from_be_bytes([tcp[2], tcp[3]]),
        opens: tcp[13] & (SYN | ACK | RST) == SYN,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const REMOTE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const LOCAL: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

    /// A valid SYN, except for its checksum, which nobody checks.
    pub(crate) fn syn(from: Ipv6Addr, to: Ipv6Addr, to_port: u16) -> Vec<u8> {
        let mut packet = vec![0; IPV6_HEADER_BYTES + TCP_HEADER_BYTES];
        packet[0] = 0x60;
        packet[5] = TCP_HEADER_BYTES as u8;
        packet[6] = TCP;
        packet[7] = 64;
        packet[8..24].copy_from_slice(&from.octets());
        packet[24..40].copy_from_slice(&to.octets());
        packet[40..42].copy_from_slice(&50_000_u16.to_be_bytes());
        packet[42..44].copy_from_slice(&to_port.to_be_bytes());
        packet[52] = 5 << 4;
        packet[53] = SYN;
        packet[54..56].copy_from_slice(&1024_u16.to_be_bytes());
        packet
    }

    #[test]
    fn the_peer_may_open_a_connection() {
        let segment = admit(&syn(REMOTE, LOCAL, 6443), REMOTE, LOCAL);
        assert_eq!(segment, Some(Segment { from_port: 50_000, to_port: 6443, opens: true }));
    }

    #[test]
    fn nobody_else_nowhere_else_and_nothing_else() {
        let stranger = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
        assert_eq!(admit(&syn(stranger, LOCAL, 6443), REMOTE, LOCAL), None);
        assert_eq!(admit(&syn(REMOTE, stranger, 6443), REMOTE, LOCAL), None);
        for (at, value) in [(0, 0x45), (6, 17), (6, 58), (6, 0)] {
            let mut packet = syn(REMOTE, LOCAL, 6443);
            packet[at] = value;
            assert_eq!(admit(&packet, REMOTE, LOCAL), None);
        }
        let packet = syn(REMOTE, LOCAL, 6443);
        for length in 0..packet.len() {
            assert_eq!(admit(&packet[..length], REMOTE, LOCAL), None);
        }
    }
}
