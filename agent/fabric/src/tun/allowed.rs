//! Cryptokey routing: which inner addresses belong to a peering.
//!
//! As in WireGuard, one list serves both directions: it routes packets by destination, and checks the source of
//! received packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::PodNetwork;
use crate::address::fabric_addresses_v4;
use crate::error::FabricError;
use crate::peer::config::{PeerConfig, Role};

/// Most pod networks of one cluster.
const MAX_ROUTES: usize = 64;

/// The inner addresses of one peering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(super) local: (Ipv4Addr, Ipv6Addr),
    pub(super) remote: (Ipv4Addr, Ipv6Addr),
    pub(super) routes: Vec<PodNetwork>,
}

impl Allowed {
    pub(crate) fn of(config: &PeerConfig) -> Self {
        let v4 = fabric_addresses_v4(&config.peering, config.epoch);
        let (local, remote) = match config.role {
            Role::Donor => (v4.donor, v4.origin),
            Role::Origin => (v4.origin, v4.donor),
        };
        let truncated = |net: &PodNetwork| PodNetwork { there: net.there.trunc(), here: net.here.trunc() };
        let mut routes: Vec<PodNetwork> = config.routes.iter().map(truncated).collect();
        routes.sort_unstable();
        routes.dedup();
        Self { local: (local, config.local_address), remote: (remote, config.remote_address), routes }
    }

    /// Whether the other side may send from an address, which is one of its own cluster.
    pub(crate) fn admits(&self, source: IpAddr) -> bool {
        match source {
            IpAddr::V4(source) => source == self.remote.0 || self.routes.iter().any(|net| net.there.contains(&source)),
            IpAddr::V6(source) => source == self.remote.1,
        }
    }
}

/// The source address of an IP packet.
pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// The destination address of an IP packet.
pub(super) fn destination(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 16, 24)
}

fn address(packet: &[u8], at_v4: usize, at_v6: usize) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(at_v4..)?.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        6 => packet.get(at_v6..)?.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

/// The routes to peerings.
#[derive(Clone, Debug)]
pub(super) struct RouteTable<P> {
    hosts: BTreeMap<IpAddr, P>,
    /// Longest prefix first. A network has all tunnels of one cluster, in the order in which they were added.
    nets: Vec<(Ipv4Net, Vec<P>)>,
}

impl<P> Default for RouteTable<P> {
    fn default() -> Self {
        Self { hosts: BTreeMap::new(), nets: Vec::new() }
    }
}

impl<P: Clone> RouteTable<P> {
    pub(super) fn add(&mut self, allowed: &Allowed, peer: &P) {
        self.hosts.insert(allowed.remote.0.into(), peer.clone());
        self.hosts.insert(allowed.remote.1.into(), peer.clone());
        for PodNetwork { here, .. } in &allowed.routes {
            match self.nets.iter_mut().find(|(known, _)| known == here) {
                Some((_, peers)) => peers.push(peer.clone()),
                None => self.nets.push((*here, vec![peer.clone()])),
            }
        }
        self.nets.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    }

    /// The tunnel for an address; of several, the first that is up.
    pub(super) fn lookup(&self, destination: IpAddr, is_up: impl Fn(&P) -> bool) -> Option<&P> {
        if let Some(peer) = self.hosts.get(&destination) {
            return Some(peer);
        }
        let IpAddr::V4(destination) = destination else {
            return None;
        };
        let (_, peers) = self.nets.iter().find(|(net, _)| net.contains(&destination))?;
        match peers.as_slice() {
            [only] => Some(only),
            several => several.iter().find(|peer| is_up(peer)).or(several.first()),
        }
    }
}

/// The table in force; it is replaced as a whole.
pub(super) type SharedRouteTable<P> = Arc<std::sync::RwLock<Arc<RouteTable<P>>>>;

/// A network of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnNetwork {
    pub(super) net: IpNet,
    /// Where it was found, for error messages.
    pub(super) what: String,
    /// It is one of this node's own addresses.
    pub(super) is_address: bool,
}

/// Checks that a peering's networks do not overlap with this node's or another peering's.
pub(super) fn check<'a>(
    config: &PeerConfig,
    own: &[OwnNetwork],
    others: impl Iterator<Item = &'a PeerConfig>,
) -> Result<(), FabricError> {
    let peering = || config.peering.clone();
    let allowed = Allowed::of(config);
    if allowed.routes.len() > MAX_ROUTES {
        let count = allowed.routes.len();
        return Err(FabricError::TooMany { peering: peering(), what: "pod networks", count, limit: MAX_ROUTES });
    }
    let nets: Vec<(String, IpNet)> = (allowed.routes.iter())
        .map(|net| (format!("pod network {}", net.here), IpNet::V4(net.here)))
        .chain([(format!("fabric address {}", allowed.remote.0), IpNet::from(IpAddr::V4(allowed.remote.0)))])
        .collect();
    let api = config.remote_api.map(|api| (format!("API server {api}"), IpNet::from(api.ip())));
    for network in own {
        let address_only = api.iter().filter(|_| network.is_address);
        if let Some((theirs, _)) = nets.iter().chain(address_only).find(|(_, net)| overlap(net, &network.net)) {
            let own = format!("{} ({})", network.net, network.what);
            return Err(FabricError::Overlap { peering: peering(), theirs: theirs.clone(), own });
        }
    }
    for endpoint in &config.endpoints {
        if let Some((theirs, _)) = nets.iter().find(|(_, net)| net.contains(&endpoint.ip().to_canonical())) {
            let own = format!("the tunnel's own way to {endpoint}");
            return Err(FabricError::Overlap { peering: peering(), theirs: theirs.clone(), own });
        }
    }
    if let Some(api) = config.remote_api.filter(|api| !is_plain(api.ip()) || api.port() == 0) {
        let own = "what only has a meaning within one node".to_owned();
        return Err(FabricError::Overlap { peering: peering(), theirs: format!("API server {api}"), own });
    }
    others.filter(|other| other.peering != config.peering).try_for_each(|other| disjoint(config, &allowed, other))
}

fn disjoint(config: &PeerConfig, allowed: &Allowed, other: &PeerConfig) -> Result<(), FabricError> {
    let theirs = Allowed::of(other);
    let claimed = |theirs: String, existing: String| FabricError::Claimed {
        peering: config.peering.clone(),
        cluster: config.remote_cluster.clone(),
        theirs,
        other: existing,
        other_peering: other.peering.clone(),
    };
    let pair = |allowed: &Allowed| allowed.local.0.to_bits() & !3;
    if pair(allowed) == pair(&theirs) {
        return Err(claimed(format!("fabric address {}", allowed.local.0), theirs.local.0.to_string()));
    }
    if let (Some(api), Some(other_api)) = (config.remote_api, other.remote_api)
        && api == other_api
    {
        return Err(claimed(format!("API server {api}"), other_api.to_string()));
    }
    let shared = config.remote_cluster == other.remote_cluster;
    for net in &allowed.routes {
        let clash = theirs.routes.iter().find(|existing| {
            let same = shared && *existing == net;
            !same && overlap(&IpNet::V4(net.here), &IpNet::V4(existing.here))
        });
        if let Some(existing) = clash {
            return Err(claimed(format!("pod network {}", net.here), existing.here.to_string()));
        }
    }
    Ok(())
}

pub(super) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn is_plain(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests;
