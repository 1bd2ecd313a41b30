//! Vxlan devices, their peers, and the routes and rules to them, over rtnetlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};

use super::super::netlink::Netlink;
use super::{ApiRoute, NextHop, PRIORITY, PolicyRule, RouteKey, TABLE, device_address, mac};

/// Loose reverse path filtering: the firewall checks sources, and the way back to a node's pods may be the network
/// plugin's.
const LOOSE: i32 = 2;

/// A vxlan device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub(super) name: String,
    pub(super) vni: u32,
    pub(super) port: u16,
    /// This node's own address.
    pub(super) local: Ipv4Addr,
    pub(super) mtu: u16,
}

impl Netlink {
    /// This node's IPv4 addresses, each with the index of its link.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<(Ipv4Addr, u32)>> {
        let answers = self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let mut own = Vec::new();
        for answer in answers {
            let RouteNetlinkMessage::NewAddress(address) = answer else { continue };
            let local = address.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(IpAddr::V4(local)) => Some(*local),
                _ => None,
            });
            own.extend(local.map(|local| (local, address.header.index)));
        }
        Ok(own)
    }

    /// MTU of a link.
    pub(super) fn mtu(&mut self, index: u32) -> io::Result<u32> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let found = self.request(RouteNetlinkMessage::GetLink(message), netlink_packet_core::NLM_F_ACK)?;
        let attributes = found.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link.attributes),
            _ => None,
        });
        let mtu = attributes.into_iter().flatten().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(mtu),
            _ => None,
        });
        mtu.ok_or_else(|| io::Error::other("the kernel reports no MTU of the nodes' link"))
    }

    /// Makes a device, brings it up and returns its index. Its name must be free.
    pub(super) fn make_vxlan(&mut self, vxlan: &Vxlan) -> io::Result<u32> {
        let mut message = LinkMessage::default();
        let data = vec![
            InfoVxlan::Id(vxlan.vni),
            InfoVxlan::Local(vxlan.local),
            InfoVxlan::Learning(false),
            InfoVxlan::Port(vxlan.port),
        ];
        message.attributes = vec![
            LinkAttribute::IfName(vxlan.name.clone()),
            LinkAttribute::Mtu(u32::from(vxlan.mtu)),
            LinkAttribute::Address(mac(vxlan.local).to_vec()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(InfoData::Vxlan(data))]),
        ];
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map_err(named)?;
        let index = self.link(&vxlan.name)?.ok_or(io::ErrorKind::NotFound)?;
        // Set by netlink, not by files of /proc/sys: containers see those read-only.
        let mut conf = InetDevConf::default();
        (conf.forwarding, conf.rp_filter) = (1, LOOSE);
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes =
            vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(conf)])])];
        self.change(RouteNetlinkMessage::SetLink(message), 0)?;
        self.change(RouteNetlinkMessage::NewAddress(own_address(index, vxlan.local)), NLM_F_CREATE | NLM_F_REPLACE)?;
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0).map_err(named)?;
        Ok(index)
    }

    /// Removes a vxlan device of that name, with its routes; another kind of link is an error.
    pub(super) fn remove_vxlan(&mut self, name: &str) -> io::Result<()> {
        self.remove_link(name, &InfoKind::Vxlan, "vxlan")
    }

    /// Lets a device reach another node's.
    pub(super) fn add_peer(&mut self, index: u32, node: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.change(RouteNetlinkMessage::NewNeighbour(forwarding_entry(index, node, mac)), flags)?;
        self.change(RouteNetlinkMessage::NewNeighbour(neighbour(index, node, mac)), flags)
    }

    pub(super) fn remove_peer(&mut self, index: u32, node: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        self.remove(RouteNetlinkMessage::DelNeighbour(neighbour(index, node, mac)))?;
        self.remove(RouteNetlinkMessage::DelNeighbour(forwarding_entry(index, node, mac)))
    }

    pub(super) fn add_route_via(&mut self, index: u32, key: RouteKey, hop: NextHop) -> io::Result<()> {
        let mut message = route(index, key.table, key.network);
        message.header.flags = RouteFlags::Onlink;
        message.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(hop.address)));
        message.attributes.extend(hop.source.map(|source| RouteAttribute::PrefSource(RouteAddress::Inet(source))));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn remove_route_via(&mut self, index: u32, key: RouteKey) -> io::Result<()> {
        self.remove(RouteNetlinkMessage::DelRoute(route(index, key.table, key.network)))
    }

    pub(super) fn add_rule(&mut self, rule: &PolicyRule) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewRule(policy(rule)), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn remove_rule(&mut self, rule: &PolicyRule) -> io::Result<()> {
        self.remove(RouteNetlinkMessage::DelRule(policy(rule)))
    }

    /// Removes every rule for the overlay's table that an earlier run left.
    pub(super) fn clear_rules(&mut self) -> io::Result<()> {
        let mut all = RuleMessage::default();
        all.header.family = AddressFamily::Inet;
        for answer in self.request(RouteNetlinkMessage::GetRule(all), NLM_F_DUMP)? {
            if let RouteNetlinkMessage::NewRule(rule) = answer
                && rule.attributes.contains(&RuleAttribute::Table(TABLE))
            {
                self.remove(RouteNetlinkMessage::DelRule(rule))?;
            }
        }
        Ok(())
    }
}

fn named(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(17) => {
            io::Error::other("another vxlan device has this number and port; set another fabric.tun.overlay.vni")
        }
        Some(98) => io::Error::other("something listens on its UDP port; set another fabric.tun.overlay.port"),
        Some(95) => io::Error::other("this kernel has no vxlan; load the module vxlan"),
        _ => error,
    }
}

/// Nothing uses this address, but filtering is always strict on a device without one.
fn own_address(index: u32, node: Ipv4Addr) -> AddressMessage {
    let address = IpAddr::V4(device_address(node));
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.index = index;
    message.header.prefix_len = 32;
    message.header.scope = AddressScope::Host;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

/// The node to which packets for a MAC go.
fn forwarding_entry(index: u32, node: Ipv4Addr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = entry(index, node, mac);
    message.header.family = AddressFamily::Bridge;
    message.header.flags = NeighbourFlags::Own;
    message
}

/// The MAC of a next hop.
fn neighbour(index: u32, node: Ipv4Addr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = entry(index, node, mac);
    message.header.family = AddressFamily::Inet;
    message
}

fn entry(index: u32, node: Ipv4Addr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(node)),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

fn route(index: u32, table: u32, net: Ipv4Net) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = net.prefix_len();
    message.header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![RouteAttribute::Table(table), RouteAttribute::Oif(index)];
    if net.prefix_len() > 0 {
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(net.network())));
    }
    message
}

fn policy(rule: &PolicyRule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![RuleAttribute::Table(TABLE), RuleAttribute::Priority(PRIORITY)];
    match rule {
        PolicyRule::Enters(device) => message.attributes.push(RuleAttribute::Iifname(device.clone())),
        PolicyRule::From(net) => {
            message.header.src_len = net.prefix_len();
            message.attributes.push(RuleAttribute::Source(net.network().into()));
        }
        PolicyRule::Api(ApiRoute { client, server }) => {
            (message.header.src_len, message.header.dst_len) = (32, 32);
            let port = RulePortRange { start: server.port(), end: server.port() };
            message.attributes.extend([
                RuleAttribute::Source((*client).into()),
                RuleAttribute::Destination((*server.ip()).into()),
                RuleAttribute::IpProtocol(IpProtocol::Tcp),
                RuleAttribute::DestinationPortRange(port),
            ]);
        }
    }
    message
}
