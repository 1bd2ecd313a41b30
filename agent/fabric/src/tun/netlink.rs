//! Links, addresses and routes of this node, over rtnetlink.
//!
//! The kernel answers at once, so calls block. A change that is already in place is no error.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::allowed::OwnNetwork;

/// Errno for a missing object.
const GONE: [i32; 4] = [2, 3, 19, 99];
const EXISTS: i32 = 17;
/// Most messages read of one answer; a node has far fewer routes.
const MAX_ANSWERS: usize = 100_000;

/// A connection to the kernel's network tables of one namespace.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a connection to the tables of this thread's namespace.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(super) fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                let length = (answer.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(length..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) => match error.code {
                        Some(code) => return Err(io::Error::from_raw_os_error(code.get().abs())),
                        None => return Ok(answers),
                    },
                    NetlinkPayload::InnerMessage(message) if answers.len() < MAX_ANSWERS => answers.push(message),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        match self.request(message, NLM_F_ACK | flags) {
            Err(error) if error.raw_os_error() == Some(EXISTS) => Ok(()),
            result => result.map(drop),
        }
    }

    pub(super) fn remove(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        match self.request(message, NLM_F_ACK) {
            Err(error) if error.raw_os_error().is_some_and(|code| GONE.contains(&code)) => Ok(()),
            result => result.map(drop),
        }
    }

    /// The index of a link, if one has that name.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Option<u32>> {
        Ok(self.find_link(name)?.map(|link| link.header.index))
    }

    fn find_link(&mut self, name: &str) -> io::Result<Option<LinkMessage>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.request(RouteNetlinkMessage::GetLink(message), NLM_F_ACK) {
            Err(error) if error.raw_os_error().is_some_and(|code| GONE.contains(&code)) => Ok(None),
            Err(error) => Err(error),
            Ok(found) => Ok(found.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) => Some(link),
                _ => None,
            })),
        }
    }

    /// Removes a TUN device of that name; another kind of link is an error.
    pub(super) fn remove_tun(&mut self, name: &str) -> io::Result<()> {
        self.remove_link(name, &InfoKind::Tun, "tun")
    }

    /// Removes a link of this name and kind; another kind is an error.
    pub(super) fn remove_link(&mut self, name: &str, wanted: &InfoKind, shown: &str) -> io::Result<()> {
        let Some(link) = self.find_link(name)? else { return Ok(()) };
        let kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(kind) if kind == wanted);
        let is_ours = link.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.iter().any(kind),
            _ => false,
        });
        if !is_ours {
            let reason = format!("a link of that name exists and is no {shown} device; name another one");
            return Err(io::Error::other(reason));
        }
        let mut message = LinkMessage::default();
        message.header.index = link.header.index;
        self.remove(RouteNetlinkMessage::DelLink(message))
    }

    pub(super) fn raise_link(&mut self, index: u32, mtu: u16) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::Mtu(u32::from(mtu)));
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    pub(super) fn add_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewAddress(host_address(index, address)), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn remove_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        self.remove(RouteNetlinkMessage::DelAddress(host_address(index, address)))
    }

    pub(super) fn add_route(&mut self, index: u32, net: IpNet, source: IpAddr) -> io::Result<()> {
        let mut message = link_route(index, net);
        message.attributes.push(RouteAttribute::PrefSource(route_address(source)));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn remove_route(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        self.remove(RouteNetlinkMessage::DelRoute(link_route(index, net)))
    }

    /// This node's addresses and routed networks, except default routes and routes over the link `except`.
    pub(super) fn own_networks(&mut self, except: u32) -> io::Result<Vec<OwnNetwork>> {
        let mut own = Vec::new();
        let addresses = self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        for answer in addresses {
            let RouteNetlinkMessage::NewAddress(address) = answer else { continue };
            let local = address.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(local) => Some(*local),
                _ => None,
            });
            let given = address.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(given) => Some(*given),
                _ => None,
            });
            if let Some(address) = local.or(given).filter(|_| address.header.index != except) {
                own.push(OwnNetwork { net: address.into(), what: "an address of it".to_owned(), is_address: true });
            }
        }
        let mut everything = RouteMessage::default();
        everything.header.address_family = AddressFamily::Inet;
        for answer in self.request(RouteNetlinkMessage::GetRoute(everything), NLM_F_DUMP)? {
            if let RouteNetlinkMessage::NewRoute(route) = answer
                && route.header.table == RouteHeader::RT_TABLE_MAIN
                && let Some(net) = destination(&route).filter(|net| net.prefix_len() > 0)
                && !route.attributes.contains(&RouteAttribute::Oif(except))
            {
                own.push(OwnNetwork { net, what: "a route of it".to_owned(), is_address: false });
            }
        }
        // Networks come first: in an error they say more than an address within them.
        own.sort_by_key(|network| network.is_address);
        Ok(own)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

fn host_address(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.index = index;
    message.header.prefix_len = if address.is_ipv4() { 32 } else { 128 };
    message.header.scope = AddressScope::Universe;
    if address.is_ipv6() {
        // No other node can have this address, so it is usable at once.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

fn link_route(index: u32, net: IpNet) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(net.network());
    message.header.destination_prefix_length = net.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = if net.network().is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![RouteAttribute::Destination(route_address(net.network())), RouteAttribute::Oif(index)];
    message
}

fn destination(route: &RouteMessage) -> Option<IpNet> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        _ => None,
    })?;
    IpNet::new(address, route.header.destination_prefix_length).ok()
}
