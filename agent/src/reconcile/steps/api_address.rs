//! The address of a donor's API server, whose bundle may give a name.

use std::net::SocketAddr;

use comity_agent_state::record::{RemoteKeys, RemoteNetwork};
use comity_types::Side;

/// The other side's network; on the origin with an address in place of its API server's name, as this node resolves it.
pub(super) async fn resolved(side: Side, remote: &RemoteKeys) -> RemoteNetwork {
    let mut network = remote.network.clone();
    if side == Side::Donor || network.api_server.is_empty() || network.api_address().is_some() {
        return network;
    }
    match tokio::net::lookup_host(remote.network.api_server.as_str()).await {
        Ok(mut found) => {
            network.api_server = found.find(SocketAddr::is_ipv4).map(|found| found.to_string()).unwrap_or_default();
        }
        Err(error) => {
            let name = &network.api_server;
            tracing::warn!(name, %error, cluster = remote.cluster, "the donor's API server does not resolve");
        }
    }
    network
}
