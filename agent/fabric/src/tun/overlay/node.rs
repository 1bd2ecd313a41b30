//! The end of the overlay on a node that is not the gateway.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

use ipnet::{IpNet, Ipv4Net};

use super::super::allowed::overlap;
use super::super::firewall;
use super::super::netlink::Netlink;
use super::links::Vxlan;
use super::{NextHop, OverlayState, PolicyRule, Published, RouteKey, TABLE, node_ruleset, overlay_mtu};
use crate::FabricError;

/// This node's part of the overlay.
pub struct NodeOverlay {
    netlink: Netlink,
    device: String,
    /// This node's InternalIP, if configured.
    own: Option<Ipv4Addr>,
    running: Option<Running>,
}

struct Running {
    vxlan: Vxlan,
    index: u32,
    state: OverlayState,
    script: String,
}

impl NodeOverlay {
    /// Makes nothing yet, and removes nothing of an earlier run.
    ///
    /// # Errors
    /// [`FabricError::Network`].
    pub fn open(device: &str, own: Option<Ipv4Addr>) -> Result<Self, FabricError> {
        let netlink = Netlink::open().map_err(failed("ask the kernel for its links"))?;
        Ok(Self { netlink, device: device.to_owned(), own, running: None })
    }

    /// Makes this node match the published document; returns the parts that it refused.
    ///
    /// # Errors
    /// [`FabricError`]; the node then keeps its earlier state, or a part of the new one.
    pub fn apply(&mut self, published: &Published) -> Result<Vec<FabricError>, FabricError> {
        let addresses = self.netlink.addresses().map_err(failed("list this node's addresses"))?;
        if addresses.iter().any(|(address, _)| *address == published.gateway) {
            return Err(FabricError::IsGateway { gateway: published.gateway });
        }
        let own = self.own.map_or_else(|| toward(published), Ok).map_err(failed("find the route to the gateway"))?;
        let link = addresses.iter().find(|(address, _)| *address == own).map(|(_, link)| *link);
        let link = link.ok_or(FabricError::NotOurAddress { address: own })?;
        let nodes = self.netlink.mtu(link).map_err(failed("read the MTU of the nodes' network"))?;
        let (published, refused) = self.admissible(published)?;
        let vxlan = Vxlan {
            name: self.device.clone(),
            vni: published.vni,
            port: published.port,
            local: own,
            mtu: overlay_mtu(published.mtu, nodes),
        };
        // The rules come first, so that no traffic passes without them.
        let script = node_ruleset::script(&self.device, &published);
        firewall::load(&script)?;
        let index = self.link(&vxlan)?;
        let mut running = self.running.take().filter(|running| running.index == index && running.vxlan == vxlan);
        if running.is_none() {
            self.remove_links()?;
            let device = |source| FabricError::Device { device: self.device.clone(), source };
            let index = self.netlink.make_vxlan(&vxlan).map_err(device)?;
            tracing::info!(device = vxlan.name, mtu = vxlan.mtu, %own, gateway = %published.gateway, "the overlay to the gateway is up");
            running = Some(Running { vxlan, index, state: OverlayState::default(), script: String::new() });
        }
        let Some(mut running) = running else { return Ok(refused) };
        let changed = running.state.change(&wanted_state(own, &published), &mut self.netlink, running.index);
        running.script = script;
        self.running = Some(running);
        changed.map(|()| refused)
    }

    /// The index of this overlay's device, 0 if it is gone.
    fn link(&mut self, vxlan: &Vxlan) -> Result<u32, FabricError> {
        self.netlink.link(&vxlan.name).map(Option::unwrap_or_default).map_err(failed("find the overlay's device"))
    }

    /// Removes everything, including leftovers of an earlier run.
    pub fn clear(&mut self) {
        // The gateway has a device of this name too: it is ours only if our table exists.
        if self.running.take().is_none() && !firewall::exists("comity_node") {
            return;
        }
        if let Err(error) = self.remove_links().and_then(|()| firewall::load(node_ruleset::REMOVE_NODE_TABLE)) {
            tracing::warn!(%error, "a part of the overlay is left behind");
        }
    }

    fn remove_links(&mut self) -> Result<(), FabricError> {
        super::GatewayOverlay::remove_leftovers(&mut self.netlink, &self.device)
    }

    /// Separates entries that conflict with this node's own networks from the rest.
    fn admissible(&mut self, published: &Published) -> Result<(Published, Vec<FabricError>), FabricError> {
        let device = self.netlink.link(&self.device).map_err(failed("find the overlay's device"))?;
        let own = self.netlink.own_networks(device.unwrap_or_default());
        let own = own.map_err(failed("list this node's networks"))?;
        let (mut admissible, mut refused) = (published.clone(), Vec::new());
        let mut clash = |theirs: String, net: IpNet, addresses_only: bool| {
            let known = own.iter().filter(|network| network.is_address || !addresses_only);
            let clash = known.into_iter().find(|network| overlap(&net, &network.net));
            refused.extend(clash.map(|network| FabricError::NodeOverlap {
                theirs,
                own: format!("{} ({})", network.net, network.what),
            }));
            clash.is_none()
        };
        admissible.pod_networks.retain(|net| clash(format!("pod network {net}"), (*net).into(), false));
        let servers: BTreeSet<SocketAddrV4> = admissible.api_routes.iter().map(|route| route.server).collect();
        let is_free = |api: &SocketAddrV4| clash(format!("API server {api}"), IpAddr::V4(*api.ip()).into(), true);
        let free: BTreeSet<SocketAddrV4> = servers.into_iter().filter(is_free).collect();
        admissible.api_routes.retain(|route| free.contains(&route.server));
        Ok((admissible, refused))
    }

    /// Whether the device and the firewall table still exist.
    ///
    /// # Errors
    /// [`FabricError::Network`].
    pub fn is_whole(&mut self) -> Result<bool, FabricError> {
        let Some(running) = &self.running else { return Ok(true) };
        let index = running.index;
        let link = self.netlink.link(&self.device).map_err(failed("find the overlay's device"))?;
        Ok(link == Some(index) && firewall::exists("comity_node"))
    }
}

impl Drop for NodeOverlay {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.clear();
        }
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> FabricError {
    let what = what.to_owned();
    move |source| FabricError::Network { what, source }
}

/// The address that this node uses toward the gateway. Sends no packet.
fn toward(published: &Published) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((published.gateway, published.port))?;
    match socket.local_addr()?.ip() {
        IpAddr::V4(own) => Ok(own),
        IpAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Pods use the main table. An API server has a host's address, and other ports of that host keep their route, as do pods
/// that are no clients of it: only TCP of the clients to its port uses the other table.
fn wanted_state(own: Ipv4Addr, published: &Published) -> OverlayState {
    let hop = NextHop { address: published.gateway, source: Some(own) };
    let main = u32::from(netlink_packet_route::route::RouteHeader::RT_TABLE_MAIN);
    let in_main = |network: &Ipv4Net| (RouteKey { table: main, network: *network }, hop);
    let mut routes: super::Routes = published.pod_networks.iter().map(in_main).collect();
    if !published.api_routes.is_empty() {
        routes.insert(RouteKey { table: TABLE, network: Ipv4Net::default() }, hop);
    }
    let rules = published.api_routes.iter().map(|route| PolicyRule::Api(*route)).collect();
    OverlayState { peers: [published.gateway].into(), routes, rules }
}
