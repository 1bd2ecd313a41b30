//! The overlay between the gateway and the other nodes of its cluster: a vxlan device on each, with configured peers
//! and no address learning.
//!
//! ```text
//! pod ─ node ═ comity0v ═ vxlan ═ comity0v ═ gateway ═ comity0 ═ tunnel
//! ```
//!
//! Routes over it use the other node's own address as the next hop, with a MAC derived from it. `gateway` and `node`
//! are the two ends, `links` is a thin layer over the kernel, and the rest is pure.

mod gateway;
mod links;
mod node;
mod node_ruleset;
mod published;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

pub(super) use gateway::GatewayOverlay;
pub use node::NodeOverlay;
pub(super) use published::MAX_API_ROUTES;
pub use published::{ApiRoute, Published, PublishedError};

use super::netlink::Netlink;
use crate::FabricError;

/// Most other nodes of a cluster.
pub const MAX_NODES: usize = 1_000;
/// Number of the routing table; nothing else may have routes in it.
const TABLE: u32 = 51_872;
/// Priority of the rules for that table: before the main table's.
const PRIORITY: u32 = 5_187;
/// Overhead of vxlan over IPv4.
const HEADER_BYTES: u32 = 50;
/// Smallest MTU of an IPv4 link.
const MIN_OVERLAY_MTU: u32 = 576;

/// A node of the cluster, from its Node object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterNode {
    /// Its InternalIP.
    pub address: Ipv4Addr,
    /// `spec.podCIDRs`, if set.
    pub pod_networks: BTreeSet<Ipv4Net>,
}

/// The name of the vxlan device beside a tunnel's.
#[must_use]
pub fn overlay_device(tunnel: &str) -> String {
    format!("{tunnel}v")
}

/// The MAC of a node's end: locally administered, and as unique as its address.
fn mac(node: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = node.octets();
    [0x02, 0xc0, a, b, c, d]
}

/// The address of a node's device, from 248.0.0.0/6: reserved permanently, as is 240.0.0.0/5 for the tunnels'
/// addresses.
fn device_address(node: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xf800_0000 | node.to_bits() & 0x03ff_ffff)
}

/// The overlay's MTU: the tunnel's, or less if the nodes' network has no room for the headers.
fn overlay_mtu(tunnel: u16, nodes: u32) -> u16 {
    let room = nodes.saturating_sub(HEADER_BYTES).max(MIN_OVERLAY_MTU);
    u16::try_from(room).map_or(tunnel, |room| room.min(tunnel))
}

/// Which packets use the overlay's own routing table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PolicyRule {
    /// Packets that came in over a device.
    Enters(String),
    /// This node's own packets with a source address in a network.
    From(Ipv4Net),
    /// TCP of a pod to an API server.
    Api(ApiRoute),
}

/// A route's table and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RouteKey {
    table: u32,
    network: Ipv4Net,
}

/// A route's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextHop {
    address: Ipv4Addr,
    /// Source address for this node's own programs.
    source: Option<Ipv4Addr>,
}

type Routes = BTreeMap<RouteKey, NextHop>;

/// The wanted state of a vxlan device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OverlayState {
    peers: BTreeSet<Ipv4Addr>,
    routes: Routes,
    rules: BTreeSet<PolicyRule>,
}

impl OverlayState {
    /// Changes the device to the wanted state, and remembers each change.
    fn change(&mut self, wanted: &Self, netlink: &mut Netlink, device: u32) -> Result<(), FabricError> {
        let failed = |what: String| move |source: io::Error| FabricError::Network { what, source };
        for peer in &wanted.peers - &self.peers {
            netlink.add_peer(device, peer, mac(peer)).map_err(failed(format!("add node {peer} to the overlay")))?;
            self.peers.insert(peer);
        }
        for (key, hop) in &wanted.routes {
            if self.routes.get(key) != Some(hop) {
                let what = format!("add a route to {} over the overlay", key.network);
                netlink.add_route_via(device, *key, *hop).map_err(failed(what))?;
                self.routes.insert(*key, *hop);
            }
        }
        for rule in &wanted.rules - &self.rules {
            netlink.add_rule(&rule).map_err(failed(format!("add the routing rule {rule:?}")))?;
            self.rules.insert(rule);
        }
        for rule in &self.rules.clone() - &wanted.rules {
            netlink.remove_rule(&rule).map_err(failed(format!("remove the routing rule {rule:?}")))?;
            self.rules.remove(&rule);
        }
        let gone: Vec<_> = self.routes.keys().filter(|key| !wanted.routes.contains_key(key)).copied().collect();
        for key in gone {
            let what = format!("remove the route to {} over the overlay", key.network);
            netlink.remove_route_via(device, key).map_err(failed(what))?;
            self.routes.remove(&key);
        }
        for peer in &self.peers.clone() - &wanted.peers {
            let what = format!("remove node {peer} from the overlay");
            netlink.remove_peer(device, peer, mac(peer)).map_err(failed(what))?;
            self.peers.remove(&peer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overlay_leaves_room_for_its_headers() {
        assert_eq!(overlay_mtu(1420, 1500), 1420);
        assert_eq!(overlay_mtu(1420, 1450), 1400);
        assert_eq!(overlay_mtu(8920, 9000), 8920);
        assert_eq!(overlay_mtu(1420, 65_536), 1420);
        assert_eq!(overlay_mtu(1420, 100), 576);
    }

    #[test]
    fn two_nodes_have_two_macs_that_no_vendor_gave() {
        let one = mac(Ipv4Addr::new(198, 51, 100, 10));
        assert_eq!(one, [0x02, 0xc0, 198, 51, 100, 10]);
        assert_ne!(one, mac(Ipv4Addr::new(198, 51, 100, 11)));
        assert_eq!(device_address(Ipv4Addr::new(198, 51, 100, 10)), Ipv4Addr::new(250, 51, 100, 10));
    }
}
