//! Whether this cluster can lend and borrow virtual nodes now.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use comity_types::Delivery;
use ipnet::{IpNet, Ipv4Net};

/// How origins authenticate to a donor's API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Whether new peerings use tokens instead of a key exchange; existing ones keep their method.
    pub by_token: bool,
    /// Rotation period of tokens, in milliseconds.
    pub rotation_ms: u64,
}

impl Default for Authentication {
    fn default() -> Self {
        Self { by_token: false, rotation_ms: 2_400_000 }
    }
}

/// Whether virtual nodes can be lent and borrowed now, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeService {
    /// Donor's side.
    pub lends: Result<(), String>,
    /// Origin's side.
    pub borrows: Result<(), String>,
    /// As a donor: how origins authenticate.
    pub authentication: Authentication,
    /// Whether both fabrics must route pods.
    pub needs_tun: bool,
    /// Networks in which other clusters' pods keep their addresses.
    pub peer_networks: Vec<Ipv4Net>,
    /// Networks in which the API server of each donor may have its address, by the donor's name.
    pub peer_api_servers: BTreeMap<String, Vec<IpNet>>,
    /// Whether other pod networks of other clusters, and those that overlap with this cluster's, are remapped; otherwise
    /// what to set for that.
    pub remaps: Result<(), String>,
}

impl NodeService {
    /// Neither lends nor borrows, for one reason.
    #[must_use]
    pub fn none(reason: &str) -> Self {
        Self {
            lends: Err(reason.to_owned()),
            borrows: Err(reason.to_owned()),
            authentication: Authentication::default(),
            needs_tun: true,
            peer_networks: Vec::new(),
            peer_api_servers: BTreeMap::new(),
            remaps: Err(reason.to_owned()),
        }
    }

    /// Checks the address of a donor's API server: this cluster's connections to it lead into the tunnel, so a donor must
    /// not choose any address.
    ///
    /// # Errors
    /// A sentence with the address and the remedy.
    pub fn check_api_server(&self, donor: &str, api: SocketAddr) -> Result<(), String> {
        let address = api.ip().to_canonical();
        let listed = self.peer_api_servers.get(donor).map(Vec::as_slice).unwrap_or_default();
        if listed.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        Err(format!(
            "its API server has the address {api}, which is in none of its networks in liqo.peerApiServers; if that is \
             right, set liqo.peerApiServers: {{{donor}: [{}]}}",
            IpNet::from(address)
        ))
    }

    /// Deliveries that an offer announces.
    #[must_use]
    pub fn deliveries(&self) -> Vec<Delivery> {
        let node = self.lends.is_ok().then_some(Delivery::VirtualNode);
        std::iter::once(Delivery::Namespace).chain(node).collect()
    }
}
