//! The addresses the two sides of a peering have inside its tunnel.

use std::net::Ipv6Addr;

use sha2::{Digest, Sha256};

/// Separates this use of SHA-256 from every other one.
const DOMAIN: &[u8] = b"comity-fabric-v1";

/// The two inner addresses of one peering in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricAddresses {
    /// The donor's address: host 1 of the peering's /64.
    pub donor: Ipv6Addr,
    /// The origin's address: host 2 of the peering's /64.
    pub origin: Ipv6Addr,
}

/// Derives the addresses both sides use, without asking anybody.
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
}
