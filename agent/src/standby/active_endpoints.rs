//! Leads the agent's Services to the active replica.
//!
//! With replicas that wait, the Services have no selector. The active replica writes an EndpointSlice of the same name
//! for each, with its own address only, so that a dead predecessor gets no traffic.

use std::net::IpAddr;
use std::time::Duration;

use comity_agent_kubernetes::call::{apply, own_labels};
use comity_agent_kubernetes::failure_log::FailureLog;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, FabricModeName};

/// Label that ties a slice to its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// How often changes by others are reverted.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A Service and its port on the agent; the port's name is the Service's.
struct ActiveService {
    name: &'static str,
    port: Option<ActivePort>,
}

struct ActivePort {
    name: &'static str,
    protocol: &'static str,
    number: u16,
}

/// The Services of the active replica.
pub struct ActiveEndpoints {
    api: Api<EndpointSlice>,
    address: IpAddr,
    services: Vec<ActiveService>,
}

impl ActiveEndpoints {
    /// Those of a configuration; `address` is the pod's.
    #[must_use]
    pub fn of(config: &Config, address: IpAddr, client: Client) -> Self {
        let mut services = vec![ActiveService { name: "comity-agent", port: None }];
        if let Some(webhook) = &config.webhook {
            let port = ActivePort { name: "webhook", protocol: "TCP", number: webhook.listen.port() };
            services.push(ActiveService { name: "comity-agent-webhook", port: Some(port) });
        }
        // In mode tun the port is one of the node.
        if config.fabric.mode == FabricModeName::Netstack {
            let port = ActivePort { name: "fabric", protocol: "UDP", number: config.fabric.listen.port() };
            services.push(ActiveService { name: "comity-agent-fabric", port: Some(port) });
        }
        let api = Api::namespaced(client, &config.liqo.agent_namespace);
        Self { api, address, services }
    }

    /// Keeps the slices until stopped. They stay: the next active replica replaces them.
    pub async fn run(self, stop: CancellationToken) {
        let mut failures = FailureLog::default();
        loop {
            let mut due = CHECK_INTERVAL;
            for service in &self.services {
                match apply(&self.api, &slice(service, self.address)).await {
                    Ok(_) => failures.cleared(service.name),
                    Err(error) => {
                        due = RETRY_INTERVAL;
                        if failures.is_new(service.name, &error.to_string()) {
                            tracing::warn!(
                                %error,
                                service = service.name,
                                "a Service does not lead to this replica yet"
                            );
                        }
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(due) => {}
            }
        }
    }
}

fn slice(service: &ActiveService, address: IpAddr) -> EndpointSlice {
    let mut slice = EndpointSlice {
        address_type: if address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
        endpoints: vec![Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            ..Endpoint::default()
        }],
        ports: service.port.as_ref().map(|port| {
            vec![EndpointPort {
                name: Some(port.name.to_owned()),
                protocol: Some(port.protocol.to_owned()),
                port: Some(i32::from(port.number)),
                ..EndpointPort::default()
            }]
        }),
        ..EndpointSlice::default()
    };
    slice.metadata.name = Some(service.name.to_owned());
    slice.metadata.labels = Some(own_labels([(SERVICE_LABEL, service.name)]));
    slice
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_slice_leads_to_one_address_and_the_services_port() {
        let port = ActivePort { name: "fabric", protocol: "UDP", number: 51871 };
        let made = slice(&ActiveService { name: "comity-agent-fabric", port: Some(port) }, "10.1.2.3".parse().unwrap());
        let json = serde_json::to_value(made).unwrap();
        assert_eq!(json["metadata"]["labels"][SERVICE_LABEL], "comity-agent-fabric");
        assert_eq!(json["endpoints"][0]["addresses"], serde_json::json!(["10.1.2.3"]));
        assert_eq!(json["ports"], serde_json::json!([{"name": "fabric", "protocol": "UDP", "port": 51871}]));
    }
}
