//! Errors of the fabric, in the operator's words.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// An error of the fabric. None of them holds key material.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The UDP socket could not be opened.
    #[error(
        "cannot listen for the fabric on udp {listen}: {source}; choose another address or port, or stop what uses it"
    )]
    Bind {
        /// The address that was asked for.
        listen: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The operating system's random source failed.
    #[error("cannot read the operating system's random source: {0}")]
    Randomness(getrandom::Error),
    /// The fabric holds as many peerings as it may.
    #[error("the fabric already carries {limit} peerings, its limit; close one that is no longer needed")]
    TooManyPeerings {
        /// The limit.
        limit: usize,
    },
    /// Too many endpoint candidates.
    #[error("peering {peering} names {count} endpoint candidates; at most {limit} are allowed")]
    TooManyEndpoints {
        /// The peering's id.
        peering: String,
        /// How many were given.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// Two peerings with one key could not be distinguished.
    #[error("peering {peering} would share its private key with peering {other}; every peering needs a key of its own")]
    KeyInUse {
        /// The peering that was to be added.
        peering: String,
        /// The peering that has the key.
        other: String,
    },
    /// No side answered with the right keys in time.
    #[error(
        "peering {peering}: no WireGuard handshake within {waited:?}; check that udp reaches one of {endpoints:?} and \
         that both sides have this epoch's keys"
    )]
    HandshakeTimeout {
        /// The peering's id.
        peering: String,
        /// The time limit.
        waited: Duration,
        /// The candidates that were tried.
        endpoints: Vec<SocketAddr>,
    },
    /// The peering was removed, replaced, or its fabric ended.
    #[error("peering {peering} is no longer part of the fabric")]
    Removed {
        /// The peering's id.
        peering: String,
    },
    /// The other side has nothing on that port.
    #[error("peering {peering}: the other side refused port {port}")]
    Refused {
        /// The peering's id.
        peering: String,
        /// The port inside the tunnel.
        port: u16,
    },
    /// The other side did not answer.
    #[error("peering {peering}: no answer on port {port} within {waited:?}; the tunnel may be down")]
    ConnectTimeout {
        /// The peering's id.
        peering: String,
        /// The port inside the tunnel.
        port: u16,
        /// The time limit.
        waited: Duration,
    },
    /// The peering has as many connections as it may.
    #[error("peering {peering} already carries {limit} connections, its limit; close some and try again")]
    TooManyConnections {
        /// The peering's id.
        peering: String,
        /// The limit.
        limit: usize,
    },
    /// The port is exposed already.
    #[error("peering {peering}: port {port} inside the tunnel is already exposed")]
    PortInUse {
        /// The peering's id.
        peering: String,
        /// The port inside the tunnel.
        port: u16,
    },
    /// Port 0 cannot be used inside a tunnel.
    #[error("peering {peering}: port 0 cannot be used inside the tunnel; name a port from 1 to 65535")]
    PortZero {
        /// The peering's id.
        peering: String,
    },
    /// The port for a local forward could not be opened.
    #[error("cannot listen on tcp {bind} for the tunnel: {source}; choose another port, or 0 for any")]
    LocalBind {
        /// The address that was asked for.
        bind: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An invalid setting of mode `tun`.
    #[error("{field} {value:?} is refused: {reason}")]
    Setting {
        /// Which setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// The remedy.
        reason: String,
    },
    /// The network device could not be made.
    #[error(
        "cannot make the network device {device}: {source}; mode tun needs /dev/net/tun and NET_ADMIN in the node's \
         network namespace; set fabric.mode to netstack to do without"
    )]
    Device {
        /// The device.
        device: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A link, an address or a route could not be changed.
    #[error("cannot {what}: {source}; mode tun needs NET_ADMIN in the node's network namespace")]
    Network {
        /// The operation.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The firewall's rules could not be loaded.
    #[error("cannot load table inet comity: {reason}; mode tun needs the program nft (package nftables) and NET_ADMIN")]
    Firewall {
        /// The error of `nft`.
        reason: String,
    },
    /// A network of the other side overlaps with one of this node.
    #[error(
        "peering {peering}: {theirs} of the other side overlaps with {own} of this node; one of the two clusters must \
         use other addresses"
    )]
    Overlap {
        /// The peering's id.
        peering: String,
        /// The other side's network.
        theirs: String,
        /// The overlapping network here.
        own: String,
    },
    /// No addresses are left for a network that must be remapped.
    #[error(
        "peering {peering}: pod network {theirs} of the other side {why}, and fabric.tun.remap [{pool}] \
         has no free range of its size; add a network that neither this cluster nor its nodes use"
    )]
    NoFreeRange {
        /// The peering's id.
        peering: String,
        /// The other side's network.
        theirs: ipnet::Ipv4Net,
        /// Why it cannot keep its addresses here, as in "overlaps with 10.1.0.0/24 (a route of it)".
        why: String,
        /// The configured networks.
        pool: String,
    },
    /// Two other clusters claim the same addresses.
    #[error(
        "peering {peering}: {theirs} of cluster {cluster} overlaps with {other} of peering {other_peering}; packets \
         could not be told apart"
    )]
    Claimed {
        /// The peering that was to be added.
        peering: String,
        /// Its other side.
        cluster: String,
        /// The network that it claims.
        theirs: String,
        /// The overlapping network that another peering claims.
        other: String,
        /// That other peering.
        other_peering: String,
    },
    /// A network of other clusters is also one of this node's.
    #[error(
        "{theirs} of another cluster overlaps with {own} of this node; one of the two clusters must use other addresses"
    )]
    NodeOverlap {
        /// The other cluster's network.
        theirs: String,
        /// The overlapping network here.
        own: String,
    },
    /// None of the given nodes has an address of this machine.
    #[error(
        "none of the cluster's {nodes} nodes has one of this machine's IPv4 addresses as its InternalIP: the agent \
         must run in the network of its node (hostNetwork)"
    )]
    NoOwnNode {
        /// The number of nodes checked.
        nodes: usize,
    },
    /// The node agent was started on the gateway itself.
    #[error(
        "this node is the gateway {gateway}: comity-agent node runs on the other nodes; label this one \
         comity.dev/gateway=true"
    )]
    IsGateway {
        /// The gateway's address.
        gateway: std::net::Ipv4Addr,
    },
    /// The configured address is not one of this node's.
    #[error("this node has no address {address}: give --node-ip its InternalIP, and run in the node's network")]
    NotOurAddress {
        /// The address.
        address: std::net::Ipv4Addr,
    },
    /// Too many items of one kind for a peering.
    #[error("peering {peering} names {count} {what}; at most {limit} are allowed")]
    TooMany {
        /// The peering's id.
        peering: String,
        /// The kind of items.
        what: &'static str,
        /// How many were given.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A port that the firewall keeps closed.
    #[error("peering {peering}: port {port} is shut in mode tun; only {open} is open to the other side")]
    PortShut {
        /// The peering's id.
        peering: String,
        /// The port that was asked for.
        port: u16,
        /// The port that is open.
        open: u16,
    },
    /// The kernel did not listen inside the tunnel.
    #[error("peering {peering}: cannot listen on tcp {listen} inside the tunnel: {source}")]
    Listen {
        /// The peering's id.
        peering: String,
        /// The fabric address and port.
        listen: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
}
