//! The gateway's end of the overlay.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::super::netlink::Netlink;
use super::links::Vxlan;
use super::{ClusterNode, NextHop, OverlayState, PolicyRule, RouteKey, TABLE, overlay_mtu};
use crate::{FabricError, TunSettings};

/// The addresses of agents inside tunnels: this node's answers from one return the way that the question came.
const FABRIC_ADDRESSES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 5);

/// The vxlan device with its peers, routes and rules.
pub(in crate::tun) struct GatewayOverlay {
    vxlan: Vxlan,
    index: u32,
    state: OverlayState,
}

impl GatewayOverlay {
    /// Separates this node from the other nodes of the cluster.
    pub(in crate::tun) fn find_own_node(
        netlink: &mut Netlink,
        nodes: &[ClusterNode],
    ) -> Result<(Ipv4Addr, Vec<ClusterNode>), FabricError> {
        let addresses = netlink.addresses().map_err(failed("list this node's addresses"))?;
        let is_own = |node: &&ClusterNode| addresses.iter().any(|(address, _)| *address == node.address);
        let own = nodes.iter().find(is_own).ok_or(FabricError::NoOwnNode { nodes: nodes.len() })?;
        Ok((own.address, nodes.iter().filter(|node| !is_own(node)).cloned().collect()))
    }

    /// Makes the device; replaces one of an earlier run.
    pub(in crate::tun) fn start(
        netlink: &mut Netlink,
        settings: &TunSettings,
        own: Ipv4Addr,
    ) -> Result<Self, FabricError> {
        let name = super::overlay_device(&settings.name);
        let device = |source: io::Error| FabricError::Device { device: name.clone(), source };
        let addresses = netlink.addresses().map_err(failed("list this node's addresses"))?;
        let link = addresses.into_iter().find(|(address, _)| *address == own).map(|(_, link)| link);
        let link = link.ok_or(FabricError::NoOwnNode { nodes: 1 })?;
        let nodes = netlink.mtu(link).map_err(failed("ask what the nodes' network carries"))?;
        let vxlan = Vxlan {
            name: name.clone(),
            vni: settings.overlay.vni,
            port: settings.overlay.port,
            local: own,
            mtu: overlay_mtu(settings.mtu, nodes),
        };
        Self::remove_leftovers(netlink, &name)?;
        let index = netlink.make_vxlan(&vxlan).map_err(device)?;
        tracing::info!(device = name, mtu = vxlan.mtu, vni = vxlan.vni, port = vxlan.port, %own, "the overlay to this \
            cluster's other nodes is up");
        Ok(Self { vxlan, index, state: OverlayState::default() })
    }

    /// Removes a device and rules of an earlier run.
    pub(in crate::tun) fn remove_leftovers(netlink: &mut Netlink, name: &str) -> Result<(), FabricError> {
        let device = |source: io::Error| FabricError::Device { device: name.to_owned(), source };
        netlink.remove_vxlan(name).map_err(device)?;
        netlink.clear_rules().map_err(failed("remove routing rules of the overlay"))
    }

    /// The device's own address and MTU.
    pub(in crate::tun) fn own(&self) -> (Ipv4Addr, u16) {
        (self.vxlan.local, self.vxlan.mtu)
    }

    /// Makes the device reach these nodes and no others.
    pub(in crate::tun) fn follow(
        &mut self,
        netlink: &mut Netlink,
        tunnel: &str,
        nodes: &[ClusterNode],
    ) -> Result<(), FabricError> {
        self.state.change(&wanted_state(tunnel, nodes), netlink, self.index)
    }

    /// Removes the device, and the routes and rules to it.
    pub(in crate::tun) fn stop(self, netlink: &mut Netlink) {
        if let Err(error) = Self::remove_leftovers(netlink, &self.vxlan.name) {
            tracing::warn!(%error, "the overlay to other nodes is not wholly taken down");
        }
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> FabricError {
    let what = what.to_owned();
    move |source| FabricError::Network { what, source }
}

/// The routes from the tunnels to nodes and their pods. If two nodes claim a network, the first keeps it.
fn wanted_state(tunnel: &str, nodes: &[ClusterNode]) -> OverlayState {
    let mut routes = BTreeMap::new();
    for node in nodes {
        for network in node.pod_networks.iter().copied().chain([Ipv4Net::from(node.address)]) {
            let hop = NextHop { address: node.address, source: None };
            routes.entry(RouteKey { table: TABLE, network }).or_insert(hop);
        }
    }
    let rules = BTreeSet::from([PolicyRule::Enters(tunnel.to_owned()), PolicyRule::From(FABRIC_ADDRESSES)]);
    OverlayState { peers: nodes.iter().map(|node| node.address).collect(), routes, rules }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn replies_go_to_the_node_that_has_the_pod() {
        let node = |last: u8, nets: &[&str]| ClusterNode {
            address: Ipv4Addr::new(198, 51, 100, last),
            pod_networks: nets.iter().map(|net| net.parse().unwrap()).collect(),
        };
        let nodes = [node(11, &["10.1.1.0/24"]), node(12, &["10.1.1.0/24", "10.1.2.0/24"]), node(13, &[])];
        let state = wanted_state("comity0", &nodes);
        let via = |network: &str| {
            let key = RouteKey { table: TABLE, network: network.parse().unwrap() };
            state.routes[&key].address.octets()[3]
        };
        assert_eq!((via("10.1.1.0/24"), via("10.1.2.0/24")), (11, 12));
        assert_eq!((via("198.51.100.13/32"), state.peers.len(), state.routes.len()), (13, 3, 5));
    }
}
