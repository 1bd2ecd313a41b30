//! Step `configure-fabric`: sets up the tunnel of one epoch. The donor exposes its API in it; the origin leads its
//! pods' calls of that API into it.

use std::net::SocketAddr;

use comity_agent_fabric::{
    PeerConfig, PresharedKey, Role, WireguardKey, WireguardPublicKey, expose, fabric_addresses, lead_api,
};
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::side::Side;
use comity_agent_state::record::RemoteKeys;
use ipnet::Ipv4Net;

use super::{Context, StepError, authenticate};

pub(super) async fn run(context: &Context, peering: &str, epoch: u32) -> Result<(), StepError> {
    let record = authenticate::record(context, peering, epoch)?;
    let remote = record.remote.as_ref().ok_or(StepError::Gone("the other side's keys"))?;
    let preshared = record.preshared.as_ref().ok_or(StepError::Gone("the pre-shared key"))?;
    let addresses = fabric_addresses(peering, u64::from(epoch));
    let (role, local_address, remote_address) = match record.side {
        Side::Donor => (Role::Donor, addresses.donor, addresses.origin),
        Side::Origin => (Role::Origin, addresses.origin, addresses.donor),
    };
    let (routes, remote_api) = tunnel_routes(context, record.side, remote).await;
    let config = PeerConfig {
        peering: peering.to_owned(),
        epoch: u64::from(epoch),
        local_secret: WireguardKey::from_bytes(*record.wireguard_secret.expose()),
        remote_public: WireguardPublicKey::from_bytes(remote.wireguard_public),
        preshared: PresharedKey::from_bytes(*preshared.expose()),
        endpoints: resolve(remote).await,
        local_address,
        remote_address,
        keepalive: context.keepalive,
        role,
        remote_cluster: remote.cluster.clone(),
        routes,
        remote_api,
    };
    let handle = context.fabric.add_peer(config)?;
    let mut running = context.running();
    if running.exposures.get(peering).is_none_or(|(exposed, _)| *exposed != epoch) {
        let exposure = match record.side {
            Side::Donor => Some(expose(&handle, API_PORT, context.donor.api_target())?),
            Side::Origin if handle.leads_pods() => Some(lead_api(&handle)?),
            Side::Origin => None,
        };
        running.exposures.extend(exposure.map(|exposure| (peering.to_owned(), (epoch, exposure))));
    }
    running.tunnels.insert(peering.to_owned(), epoch);
    context.reach_due.notify_one();
    Ok(())
}

/// Routes into the tunnel: the other side's pod networks, and on the origin the donor's API server; none if they
/// overlap this cluster's own.
async fn tunnel_routes(context: &Context, side: Side, remote: &RemoteKeys) -> (Vec<Ipv4Net>, Option<SocketAddr>) {
    let allowed = context.node_service.borrow().peer_networks.clone();
    let mut network = remote.network.clone();
    if let (Side::Origin, false, None) = (side, network.api_server.is_empty(), network.api_address()) {
        // Resolved as this node resolves it.
        let found = tokio::net::lookup_host(remote.network.api_server.as_str()).await;
        match found.map(|mut found| found.find(SocketAddr::is_ipv4)) {
            Ok(found) => network.api_server = found.map(|found| found.to_string()).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(name = network.api_server, %error, cluster = remote.cluster, "the donor's API server \
                    does not resolve");
            }
        }
    }
    if let Err(reason) = network.check(context.network.as_ref(), &allowed) {
        tracing::warn!(cluster = remote.cluster, reason, "no pods are routed to this cluster");
        return (Vec::new(), None);
    }
    let remote_api = network.api_address().filter(|_| side == Side::Origin);
    (network.pod_cidrs, remote_api)
}

/// The endpoint candidates as addresses, without names that do not resolve: the other side may still initiate.
async fn resolve(remote: &RemoteKeys) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for endpoint in remote.endpoints.iter().take(8) {
        match tokio::net::lookup_host(endpoint.as_str()).await {
            Ok(found) => addresses.extend(found.take(2)),
            Err(error) => {
                tracing::warn!(%endpoint, %error, cluster = remote.cluster, "a fabric endpoint does not resolve")
            }
        }
    }
    addresses
}
