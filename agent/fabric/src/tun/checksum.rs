//! The Internet checksum (RFC 1071).
//!
//! Sums stay in native byte order: one's complement sums do not depend on it, and they are only copied to and from
//! packets.

use std::ops::Range;

use super::tcp_header::TCP;

/// Adds bytes to a sum. The bytes before them must have an even length.
pub(super) fn add(bytes: &[u8], mut sum: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// A sum folded to 16 bits, as in a checksum field, not inverted.
pub(super) fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_ne_bytes()
}

/// The final value of a checksum field.
pub(super) fn finish(sum: u64) -> [u8; 2] {
    let [high, low] = fold(sum);
    [!high, !low]
}

/// Position of the addresses in an IP packet.
pub(super) fn addresses(packet: &[u8]) -> Range<usize> {
    if packet[0] >> 4 == 4 { 12..20 } else { 8..40 }
}

/// The sum of the pseudo header of TCP or UDP.
pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    add(&length, add(&[0, protocol], add(addresses, 0)))
}

/// Whether the checksums of a TCP packet without IP fragments are correct. The transport header starts at `transport`
/// and has at least 20 bytes.
pub(super) fn tcp_is_intact(packet: &[u8], transport: usize) -> bool {
    let header_is_intact = packet[0] >> 4 == 6 || fold(add(&packet[..transport], 0)) == [0xff; 2];
    let pseudo = pseudo_header(&packet[addresses(packet)], TCP, packet.len() - transport);
    header_is_intact && fold(add(&packet[transport..], pseudo)) == [0xff; 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(&bytes, 0)), [0xdd, 0xf2]);
        assert_eq!(finish(add(&bytes, 0)), [0x22, 0x0d]);
    }

    #[test]
    fn an_odd_length_is_padded_with_zero() {
        assert_eq!(fold(add(&[1, 2, 3, 4, 5], 0)), fold(add(&[1, 2, 3, 4, 5, 0], 0)));
        assert_eq!(fold(add(&[5, 6, 7], add(&[1, 2, 3, 4], 0))), fold(add(&[1, 2, 3, 4, 5, 6, 7], 0)));
    }
}
