//! The way of a standby's node to the active gateway.

use std::net::{IpAddr, Ipv4Addr};

use comity_agent_fabric::overlay_device;
use tokio_util::sync::CancellationToken;

use super::own_address;
use crate::config::{Config, FabricModeName};
use crate::services::nodes::follower;

/// While a gateway is a standby, the pods of its node reach the active gateway as those of other nodes do.
pub(super) struct StandbyRoute(Option<(CancellationToken, tokio::task::JoinHandle<()>)>);

impl StandbyRoute {
    pub(super) fn start(config: &Config, client: kube::Client) -> Self {
        if config.fabric.mode != FabricModeName::Tun || !config.fabric.tun.overlay.enabled {
            return Self(None);
        }
        let node_ip = match own_address(config) {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let (namespace, device) = (config.liqo.agent_namespace.clone(), overlay_device(&config.fabric.tun.name));
        let stop = CancellationToken::new();
        let task = tokio::spawn(follow(client, namespace, device, node_ip, stop.clone()));
        Self(Some((stop, task)))
    }

    /// Removes everything that it made: a gateway has a device of the same name.
    pub(super) async fn end(self) {
        if let Some((stop, task)) = self.0 {
            stop.cancel();
            if let Err(error) = task.await {
                tracing::warn!(%error, "the standby's route to the gateway did not end cleanly");
            }
        }
    }
}

async fn follow(
    client: kube::Client,
    namespace: String,
    device: String,
    node_ip: Option<Ipv4Addr>,
    stop: CancellationToken,
) {
    if let Err(error) = follower::follow(client, &namespace, &device, node_ip, stop).await {
        tracing::warn!(%error, "pods of this node do not reach the active gateway");
    }
}
