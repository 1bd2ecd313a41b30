//! A pod network of the other cluster, and the addresses under which this cluster sees it.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// A pod network of the other cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodNetwork {
    /// Its addresses in the other cluster.
    pub there: Ipv4Net,
    /// Its addresses in this cluster: the same, or a range of the same size if it is remapped.
    pub here: Ipv4Net,
}

impl PodNetwork {
    /// A network that keeps its addresses.
    #[must_use]
    pub fn unchanged(network: Ipv4Net) -> Self {
        Self { there: network.trunc(), here: network.trunc() }
    }

    /// Whether this cluster sees it at other addresses.
    #[must_use]
    pub fn is_remapped(&self) -> bool {
        self.there != self.here
    }

    /// This cluster's address of a pod; `None` if the address is not of this network.
    #[must_use]
    pub fn to_here(&self, pod: Ipv4Addr) -> Option<Ipv4Addr> {
        moved(pod, self.there, self.here)
    }

    /// The other cluster's address of a pod; `None` if the address is not of this network.
    #[must_use]
    pub fn to_there(&self, pod: Ipv4Addr) -> Option<Ipv4Addr> {
        moved(pod, self.here, self.there)
    }
}

/// The address with the same host part in another network.
fn moved(address: Ipv4Addr, from: Ipv4Net, to: Ipv4Net) -> Option<Ipv4Addr> {
    let host = address.to_bits() & from.hostmask().to_bits();
    from.contains(&address).then(|| Ipv4Addr::from_bits(to.network().to_bits() | host))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_host_part_stays() {
        let network = PodNetwork { there: "10.244.0.0/16".parse().unwrap(), here: "100.70.0.0/16".parse().unwrap() };
        let (there, here) = (Ipv4Addr::new(10, 244, 3, 4), Ipv4Addr::new(100, 70, 3, 4));
        assert_eq!((network.to_here(there), network.to_there(here)), (Some(here), Some(there)));
        assert_eq!((network.to_here(here), network.to_there(there)), (None, None));
        let odd = PodNetwork { there: "10.1.2.64/26".parse().unwrap(), here: "100.64.9.128/26".parse().unwrap() };
        assert_eq!(odd.to_here(Ipv4Addr::new(10, 1, 2, 127)), Some(Ipv4Addr::new(100, 64, 9, 191)));
        assert!(network.is_remapped() && !PodNetwork::unchanged("10.1.2.3/24".parse().unwrap()).is_remapped());
    }
}
