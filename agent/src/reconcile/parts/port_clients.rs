//! Who may use the port of a lease by namespace.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use comity_agent_model::forward_target::client_check::ClientCheck;
use ipnet::IpNet;

/// Hosts of configured networks, and the pods of the lease's namespace.
pub(crate) struct PortClients {
    /// `access.clients`.
    pub(crate) networks: Vec<IpNet>,
    /// The pods, where there are any.
    pub(crate) pods: Option<Arc<dyn ClientCheck>>,
}

impl ClientCheck for PortClients {
    fn admits(&self, client: IpAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let address = client.to_canonical();
        if self.networks.iter().any(|network| network.contains(&address)) {
            return Box::pin(std::future::ready(true));
        }
        match &self.pods {
            Some(pods) => pods.admits(client),
            None => Box::pin(std::future::ready(false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_configured_networks_are_let_in_where_there_are_no_pods() {
        let networks = ["192.0.2.0/24"].map(|net| net.parse().expect("a network")).to_vec();
        let clients = PortClients { networks, pods: None };
        for (client, admits) in [("192.0.2.9", true), ("::ffff:192.0.2.9", true), ("198.51.100.1", false)] {
            assert_eq!(clients.admits(client.parse().expect("an address")).await, admits, "{client}");
        }
    }
}
