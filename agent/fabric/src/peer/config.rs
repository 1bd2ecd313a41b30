//! The configuration of one peering's tunnel.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::pod_network::PodNetwork;
use crate::key::{PresharedKey, WireguardKey, WireguardPublicKey};

/// Which side of the peering this cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Lends GPUs and exposes its API.
    Donor,
    /// Uses them; begins the handshake.
    Origin,
}

/// Configuration of a peering's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// The peering's id.
    pub peering: String,
    /// The epoch of its keys.
    pub epoch: u64,
    /// This side's private key, of this peering and epoch only.
    pub local_secret: WireguardKey,
    /// The other side's public key, from its signed key bundle.
    pub remote_public: WireguardPublicKey,
    /// The pre-shared key, from the sealed envelope.
    pub preshared: PresharedKey,
    /// Where the other side may be reached. May be empty when the other side
    /// can reach this one.
    pub endpoints: Vec<SocketAddr>,
    /// This side's address inside the tunnel.
    pub local_address: Ipv6Addr,
    /// The other side's address inside the tunnel: its only allowed IP.
    pub remote_address: Ipv6Addr,
    /// How often something is sent on an idle tunnel, to keep middleboxes
    /// open. Whole seconds, at least one; 25 s suits most.
    pub keepalive: Duration,
    /// Which side this is.
    pub role: Role,
    /// The other side's cluster. Only peerings with one cluster may share
    /// routes: two clusters that lend to each other have two peerings.
    pub remote_cluster: String,
    /// The other side's pod networks, routed into the tunnel. Used only in mode `tun`.
    pub routes: Vec<PodNetwork>,
    /// On the origin: the address of the donor's API server; TCP to it goes through the tunnel. Used only in mode
    /// `tun`.
    pub remote_api: Option<SocketAddr>,
}

impl PeerConfig {
    /// Whether only the endpoint candidates differ.
    pub(crate) fn is_same_tunnel(&self, other: &Self) -> bool {
        *self == Self { endpoints: self.endpoints.clone(), ..other.clone() }
    }
}
