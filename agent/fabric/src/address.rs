//! The addresses of the two sides of a peering inside its tunnel.

use std::net::{Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// Separates this use of SHA-256 from every other one.
const DOMAIN: &[u8] = b"comity-fabric-v1";
const DOMAIN_V4: &[u8] = b"comity-fabric-v4-1";

/// The two inner addresses of one peering in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricAddresses {
    /// The donor's address: host 1 of the peering's /64.
    pub donor: Ipv6Addr,
    /// The origin's address: host 2 of the peering's /64.
    pub origin: Ipv6Addr,
}

/// Derives the addresses that both sides use; no message is needed.
///
/// The prefix is a unique local /64 (RFC 4193): `fd` and the first seven bytes
/// of SHA-256 over `comity-fabric-v1`, the peering id and the epoch in eight
/// big-endian bytes. The epoch has a fixed width, so no two pairs of id and
/// epoch hash the same input.
#[must_use]
pub fn fabric_addresses(peering: &str, epoch: u64) -> FabricAddresses {
    let digest = Sha256::new().chain_update(DOMAIN).chain_update(peering).chain_update(epoch.to_be_bytes()).finalize();
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..8].copy_from_slice(&digest[..7]);
    let host = |number: u8| {
        let mut octets = octets;
        octets[15] = number;
        Ipv6Addr::from(octets)
    };
    FabricAddresses { donor: host(1), origin: host(2) }
}

/// The two IPv4 addresses of one peering in one epoch: the kernel translates
/// an IPv4 connection only to IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FabricAddressesV4 {
    pub(super) donor: Ipv4Addr,
    pub(super) origin: Ipv4Addr,
}

/// Derives the IPv4 addresses like [`fabric_addresses`], but from 240.0.0.0/5, which is reserved permanently (RFC
/// 1112), so no network uses it. They never appear outside the tunnel. There are 2^25 pairs: if two peerings of one
/// cluster get the same pair, the second is refused, and its next epoch gets another pair.
pub(super) fn fabric_addresses_v4(peering: &str, epoch: u64) -> FabricAddressesV4 {
    let hash = Sha256::new().chain_update(DOMAIN_V4).chain_update(peering).chain_update(epoch.to_be_bytes());
    let digest = hash.finalize();
    let pair = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) & 0x07ff_fffc;
    let host = |number: u32| Ipv4Addr::from_bits(0xf000_0000 | pair | number);
    FabricAddressesV4 { donor: host(1), origin: host(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_sides_share_one_unique_local_prefix() {
        let addresses = fabric_addresses("peering-1", 1);
        assert!(addresses.donor.is_unique_local());
        assert_eq!(addresses.donor.segments()[..4], addresses.origin.segments()[..4]);
        assert_eq!(addresses.donor.segments()[4..], [0, 0, 0, 1]);
        assert_eq!(addresses.origin.segments()[4..], [0, 0, 0, 2]);
    }

    #[test]
    fn peerings_and_epochs_do_not_share_a_prefix() {
        let first = fabric_addresses("peering-1", 1);
        assert_eq!(first, fabric_addresses("peering-1", 1));
        assert_ne!(first, fabric_addresses("peering-1", 2));
        assert_ne!(first, fabric_addresses("peering-2", 1));
    }

    #[test]
    fn the_ipv4_addresses_are_a_pair_out_of_the_reserved_block() {
        for epoch in 1..1000 {
            let FabricAddressesV4 { donor, origin } = fabric_addresses_v4("peering-1", epoch);
            assert_eq!(donor.to_bits() + 1, origin.to_bits());
            assert!((240..248).contains(&donor.octets()[0]), "{donor}");
            assert_ne!(donor, fabric_addresses_v4("peering-1", epoch + 1).donor);
        }
    }
}
