//! What the other side of a peering says of its network.

use std::net::SocketAddr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// A cluster's network, after its bundle was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteNetwork {
    /// Addresses of its pods.
    pub pod_cidrs: Vec<Ipv4Net>,
    /// "host:port" of its API server, by a name that the server's certificate carries; empty if it serves no virtual nodes.
    pub api_server: String,
    /// Cluster id of its Liqo; empty if it has none.
    pub liqo_cluster_id: String,
    /// Version of its Liqo; empty if it has none.
    pub liqo_version: String,
    /// Whether its fabric routes pods.
    pub tun: bool,
}

impl RemoteNetwork {
    /// Its API server where that is named by an address: the only form that packets can be led away from.
    #[must_use]
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.api_server.parse().ok()
    }
}
