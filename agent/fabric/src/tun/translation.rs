//! Translates the addresses of remapped pod networks, packet by packet and without state.
//!
//! ```text
//! this cluster's kernel      tunnel                     the other cluster
//! to   100.70.3.4  ────────▶ to   10.244.3.4  ────────▶
//! from 100.70.3.4  ◀──────── from 10.244.3.4  ◀────────
//! ```
//!
//! Each side translates only the other side's addresses, into the ranges that it chose itself, so neither needs to know
//! the other's choice. Routes, firewall and connection tracking of this node see only this cluster's view. The kernel
//! could not do this: its source translation comes after routing, where both clusters' packets already look alike.

use std::net::Ipv4Addr;

use super::checksum;
use super::segment::{UDP, UDP_CHECKSUM};
use super::tcp_header::{TCP, TCP_CHECKSUM};
use super::vnet::{Offload, VnetHeader};
use crate::PodNetwork;

const ICMP: u8 = 1;
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;
const IPV4_HEADER_BYTES: usize = 20;
const IPV4_CHECKSUM: usize = 10;
const IPV4_SOURCE: usize = 12;
const IPV4_DESTINATION: usize = 16;
const ICMP_HEADER_BYTES: usize = 8;
const ICMP_CHECKSUM: usize = 2;
/// Messages about another packet, which they quote: unreachable, source quench, redirect, time exceeded, bad parameter.
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];

/// The remapped pod networks of one peering.
#[derive(Clone, Debug)]
pub(super) struct Translation {
    networks: Vec<PodNetwork>,
}

/// Whether a packet's transport checksum covers its data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransportChecksum {
    /// Yes.
    Complete,
    /// It covers only the addresses: the sender left the rest to the device.
    Partial,
    /// It is computed later.
    Later,
}

/// Where a packet has the other side's address.
#[derive(Clone, Copy)]
enum Direction {
    Leaving,
    Entering,
}

impl Translation {
    /// The translation for these networks; `None` if none of them is remapped.
    pub(super) fn of(networks: &[PodNetwork]) -> Option<Self> {
        let networks: Vec<PodNetwork> = networks.iter().copied().filter(PodNetwork::is_remapped).collect();
        (!networks.is_empty()).then_some(Self { networks })
    }

    /// Translates the destination of a packet from the network device.
    pub(super) fn leave(&self, header: VnetHeader, packet: &mut [u8]) {
        let transport = match (header.offload, header.checksum) {
            (Offload::Whole, None) => TransportChecksum::Complete,
            (Offload::Whole, Some(_)) => TransportChecksum::Partial,
            (Offload::Tcp | Offload::Udp, _) => TransportChecksum::Later,
        };
        self.translate(packet, Direction::Leaving, transport);
    }

    /// Translates the source of a packet from the tunnel.
    pub(super) fn enter(&self, packet: &mut [u8]) {
        self.translate(packet, Direction::Entering, TransportChecksum::Complete);
    }

    fn translate(&self, packet: &mut [u8], direction: Direction, checksum: TransportChecksum) {
        let Some(header) = header_bytes(packet) else { return };
        let (field, quoted_field) = match direction {
            Direction::Leaving => (IPV4_DESTINATION, IPV4_SOURCE),
            Direction::Entering => (IPV4_SOURCE, IPV4_DESTINATION),
        };
        let Some(change) = self.change(packet, field, direction) else { return };
        replace(packet, field, IPV4_CHECKSUM, change);
        // Later fragments have no transport header.
        if u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0 {
            return;
        }
        let protocol = packet[9];
        let transport = &mut packet[header..];
        match protocol {
            TCP => adjust(transport, TCP_CHECKSUM, change, checksum),
            // Zero means no checksum.
            UDP if checksum == TransportChecksum::Complete && transport.get(6..8) == Some(&[0, 0]) => {}
            UDP => {
                adjust(transport, UDP_CHECKSUM, change, checksum);
                if checksum == TransportChecksum::Complete
                    && let Some(made) = transport.get_mut(6..8).filter(|made| **made == [0, 0])
                {
                    made.fill(0xff);
                }
            }
            // Their checksums are where UDP's is.
            UDP_LITE | DCCP => adjust(transport, UDP_CHECKSUM, change, checksum),
            ICMP => self.translate_quote(transport, quoted_field, direction),
            _ => {}
        }
    }

    /// Translates the other side's address in the packet that an ICMP error quotes: the receiver finds its connection
    /// by it.
    fn translate_quote(&self, icmp: &mut [u8], field: usize, direction: Direction) {
        if !icmp.first().is_some_and(|kind| ICMP_ERRORS.contains(kind)) || icmp.len() < ICMP_HEADER_BYTES {
            return;
        }
        let (head, quoted) = icmp.split_at_mut(ICMP_HEADER_BYTES);
        if header_bytes(quoted).is_none() {
            return;
        }
        let Some(change) = self.change(quoted, field, direction) else { return };
        let before = [quoted[IPV4_CHECKSUM], quoted[IPV4_CHECKSUM + 1], 0, 0];
        replace(quoted, field, IPV4_CHECKSUM, change);
        let after = [quoted[IPV4_CHECKSUM], quoted[IPV4_CHECKSUM + 1], 0, 0];
        // The ICMP checksum covers the quoted address and the quoted checksum.
        for change in [change, AddressChange { before, after }] {
            adjust(head, ICMP_CHECKSUM, change, TransportChecksum::Complete);
        }
    }

    fn change(&self, packet: &[u8], field: usize, direction: Direction) -> Option<AddressChange> {
        let before = *packet.get(field..)?.first_chunk::<4>()?;
        let after = self.networks.iter().find_map(|network| match direction {
            Direction::Leaving => network.to_there(Ipv4Addr::from(before)),
            Direction::Entering => network.to_here(Ipv4Addr::from(before)),
        })?;
        Some(AddressChange { before, after: after.octets() })
    }
}

/// Four bytes of a packet, before and after.
#[derive(Clone, Copy)]
struct AddressChange {
    before: [u8; 4],
    after: [u8; 4],
}

/// Length of a packet's IPv4 header; `None` for other packets and for one that is cut short.
fn header_bytes(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let length = usize::from(first & 0x0f) * 4;
    (first >> 4 == 4 && length >= IPV4_HEADER_BYTES && packet.len() >= length).then_some(length)
}

/// Replaces an address, and corrects the header's checksum.
fn replace(packet: &mut [u8], field: usize, checksum_at: usize, change: AddressChange) {
    packet[field..field + 4].copy_from_slice(&change.after);
    adjust(packet, checksum_at, change, TransportChecksum::Complete);
}

/// Corrects a checksum for a change of the data that it covers (RFC 1624).
fn adjust(bytes: &mut [u8], at: usize, change: AddressChange, kind: TransportChecksum) {
    let Some(field) = bytes.get_mut(at..at + 2).filter(|_| kind != TransportChecksum::Later) else { return };
    let difference = checksum::add(&change.after, checksum::add(&change.before.map(|byte| !byte), 0));
    let made = match kind {
        TransportChecksum::Complete => checksum::finish(checksum::add(&[!field[0], !field[1]], difference)),
        TransportChecksum::Partial | TransportChecksum::Later => {
            checksum::fold(checksum::add(&[field[0], field[1]], difference))
        }
    };
    field.copy_from_slice(&made);
}

#[cfg(test)]
mod fuzz_packets;
#[cfg(test)]
mod tests;
