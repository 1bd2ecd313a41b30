//! The addresses and routes of the network device: the wanted state, the present state, and the changes between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::allowed::Allowed;
use super::netlink::Netlink;
use crate::FabricError;

/// Addresses of the device, and routes with their preferred source address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    addresses: BTreeSet<IpAddr>,
    routes: BTreeMap<IpNet, IpAddr>,
}

impl Layout {
    /// The layout for these peerings. If two share a network, its source is the first one's address.
    pub(super) fn of<'a>(peerings: impl Iterator<Item = &'a Allowed>) -> Self {
        let mut layout = Self::default();
        for allowed in peerings {
            let local = (IpAddr::V4(allowed.local.0), IpAddr::V6(allowed.local.1));
            layout.addresses.extend([local.0, local.1]);
            layout.routes.insert(IpAddr::V4(allowed.remote.0).into(), local.0);
            layout.routes.insert(IpAddr::V6(allowed.remote.1).into(), local.1);
            for net in &allowed.routes {
                layout.routes.entry(net.here.into()).or_insert(local.0);
            }
        }
        layout
    }

    /// The same for a node without IPv6.
    pub(super) fn without_ipv6(mut self) -> Self {
        self.addresses.retain(IpAddr::is_ipv4);
        self.routes.retain(|_, source| source.is_ipv4());
        self
    }

    /// Changes the device to the wanted state, and remembers each change.
    pub(super) fn change(&mut self, wanted: Self, netlink: &mut Netlink, device: u32) -> Result<(), FabricError> {
        let failed = |what: String| move |source| FabricError::Network { what, source };
        for address in &wanted.addresses - &self.addresses {
            netlink.add_address(device, address).map_err(failed(format!("add address {address}")))?;
            self.addresses.insert(address);
        }
        for (net, source) in &wanted.routes {
            if self.routes.get(net) != Some(source) {
                netlink.add_route(device, *net, *source).map_err(failed(format!("add a route to {net}")))?;
                self.routes.insert(*net, *source);
            }
        }
        let gone: Vec<IpNet> = self.routes.keys().filter(|net| !wanted.routes.contains_key(net)).copied().collect();
        for net in gone {
            netlink.remove_route(device, net).map_err(failed(format!("remove the route to {net}")))?;
            self.routes.remove(&net);
        }
        for address in &self.addresses.clone() - &wanted.addresses {
            netlink.remove_address(device, address).map_err(failed(format!("remove address {address}")))?;
            self.addresses.remove(&address);
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn allowed(number: u8, routes: &[&str]) -> Allowed {
        let v6 = |host: u16| std::net::Ipv6Addr::new(0xfd00, 0, 0, u16::from(number), 0, 0, 0, host);
        Allowed {
            local: ([240, 0, number, 2].into(), v6(2)),
            remote: ([240, 0, number, 1].into(), v6(1)),
            routes: routes.iter().map(|net| crate::PodNetwork::unchanged(net.parse().unwrap())).collect(),
        }
    }

    #[test]
    fn two_peerings_share_a_network_and_keep_their_own_addresses() {
        let one = allowed(1, &["10.2.0.0/16"]);
        let other = allowed(2, &["10.2.0.0/16", "10.3.0.0/16"]);
        let layout = Layout::of([&one, &other].into_iter());
        assert_eq!(layout.addresses.len(), 4);
        assert_eq!(layout.routes.len(), 6);
        assert_eq!(layout.routes[&"10.2.0.0/16".parse().unwrap()], IpAddr::V4(one.local.0));
        assert_eq!(layout.routes[&"10.3.0.0/16".parse().unwrap()], IpAddr::V4(other.local.0));
        assert_eq!(layout.routes[&IpNet::from(IpAddr::V6(other.remote.1))], IpAddr::V6(other.local.1));
        let v4 = layout.without_ipv6();
        assert_eq!((v4.addresses.len(), v4.routes.len()), (2, 4));
    }
}
