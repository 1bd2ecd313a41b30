//! The section `liqo.podMetrics` of the configuration.

use std::net::{Ipv4Addr, SocketAddr};

use comity_agent_kubernetes::service_name::ServiceName;
use serde::{Deserialize, Serialize};

/// The port after those of the fabric (7482) and the webhook (7483).
const POD_METRICS_PORT: u16 = 7484;

/// Where metrics of offloaded pods are served to this cluster's API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodMetricsSettings {
    /// Where HTTPS is served.
    pub listen: SocketAddr,
    /// The Service in front of the agent's pod.
    pub service: ServiceName,
}

impl Default for PodMetricsSettings {
    fn default() -> Self {
        let (namespace, name) = ("comity-system".to_owned(), "comity-agent-pod-metrics".to_owned());
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, POD_METRICS_PORT)),
            service: ServiceName { namespace, name, port: 443 },
        }
    }
}
