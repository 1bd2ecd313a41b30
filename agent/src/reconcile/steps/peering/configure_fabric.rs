//! Step `configure-fabric`: sets up the tunnel of one epoch. The donor exposes its API in it; the origin forwards its
//! pods' calls of that API into it.

use std::net::SocketAddr;

use comity_agent_fabric::{
    PeerConfig, PlacementRequest, PodNetwork, PresharedKey, Role, WireguardKey, WireguardPublicKey, expose,
    fabric_addresses, forward_api,
};
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::node_service::NodeService;
use comity_agent_state::record::RemoteKeys;
use comity_types::{PeeringId, Side};
use ipnet::Ipv4Net;

use crate::reconcile::parts::{Member, Parts};
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;
use crate::reconcile::steps::{api_address, epoch};

/// Brings the tunnel up; the donor exposes its API in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigureFabric {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
}

impl Kind for ConfigureFabric {
    const NAME: &'static str = "configure-fabric";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let Parts { member, store, tunnels, deliveries, remap_book, .. } = parts;
        let (peering, epoch) = (self.peering, self.epoch);
        let record = epoch::record(store, peering, epoch)?;
        let remote = record.remote.as_ref().ok_or(StepError::Gone("the other side's keys"))?;
        let preshared = record.preshared.as_ref().ok_or(StepError::Gone("the pre-shared key"))?;
        let addresses = fabric_addresses(&peering.to_string(), u64::from(epoch));
        let (role, local_address, remote_address) = match record.side {
            Side::Donor => (Role::Donor, addresses.donor, addresses.origin),
            Side::Origin => (Role::Origin, addresses.origin, addresses.donor),
        };
        let service = deliveries.node_service.borrow().clone();
        let (pod_cidrs, remote_api) = tunnel_routes(member, &service, record.side, remote).await;
        let endpoints = resolve(remote).await;
        let routes = if service.remaps.is_ok() {
            let request = PlacementRequest {
                peering: &peering.to_string(),
                cluster: &remote.cluster,
                networks: &pod_cidrs,
                endpoints: &endpoints,
                listed: &service.peer_networks,
                own: &member.pod_networks(),
                chosen: &[],
                taken: &[],
            };
            remap_book.place(request, |request| tunnels.fabric.place(request)).await?
        } else {
            pod_cidrs.into_iter().map(PodNetwork::unchanged).collect()
        };
        let config = PeerConfig {
            peering: peering.to_string(),
            epoch: u64::from(epoch),
            local_secret: WireguardKey::from_bytes(*record.wireguard_secret.expose()),
            remote_public: WireguardPublicKey::from_bytes(remote.wireguard_public),
            preshared: PresharedKey::from_bytes(*preshared.expose()),
            endpoints,
            local_address,
            remote_address,
            keepalive: tunnels.keepalive,
            role,
            remote_cluster: remote.cluster.clone(),
            routes,
            remote_api,
        };
        tunnels.set_up(peering, config, epoch, |handle| match record.side {
            Side::Donor => expose(handle, API_PORT, deliveries.donor.api_target()).map(Some),
            Side::Origin if handle.forwards_api() => forward_api(handle).map(Some),
            Side::Origin => Ok(None),
        })?;
        Ok(())
    }
}

/// Routes into the tunnel: the other side's pod networks, and on the origin the donor's API server; none if this cluster
/// does not allow them.
async fn tunnel_routes(
    member: &Member,
    service: &NodeService,
    side: Side,
    remote: &RemoteKeys,
) -> (Vec<Ipv4Net>, Option<SocketAddr>) {
    let network = api_address::resolved(side, remote).await;
    if let Err(reason) = network.check(&remote.cluster, member.network.as_ref(), service, side) {
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
