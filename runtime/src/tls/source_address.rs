//! Where a connection comes from, as far as one party chooses it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that its holder cannot choose.
const NETWORK_BITS: u32 = 64;

/// An IPv4 address, or the /64 network of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceAddress(IpAddr);

impl SourceAddress {
    /// Of the address of a peer.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> NETWORK_BITS << NETWORK_BITS;
                Self(Ipv6Addr::from_bits(network).into())
            }
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl fmt::Display for SourceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/{NETWORK_BITS}"),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_host_can_choose_are_one_source() {
        let of = |address: &str| SourceAddress::of(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:0:7:a::1"), "2001:db8:0:7::/64");
        assert_eq!(of("2001:db8:0:7:b::2"), of("2001:db8:0:7:a::1"));
        assert_ne!(of("2001:db8:0:8:a::1"), of("2001:db8:0:7:a::1"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
    }
}
