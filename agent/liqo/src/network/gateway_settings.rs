//! Settings of Liqo's gateways: the options of `liqoctl network connect`.

use std::net::IpAddr;

use comity_agent_model::settings::InvalidSetting;
use comity_types::is_dns_label;
use serde::{Deserialize, Serialize};

/// Limits of the MTU in the tunnel: IPv6's minimum, and the rest of a jumbo frame.
const MTU: std::ops::RangeInclusive<u16> = 1_280..=8_920;
/// Default range of Kubernetes' NodePorts.
const MIN_PRIVATE_PORT: u16 = 1_024;

/// Type of a gateway's Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GatewayServiceType {
    /// An address from the cluster's provider.
    #[default]
    LoadBalancer,
    /// The address of the gateway's node.
    NodePort,
    /// The Service's own address, if other clusters have a route to it.
    #[serde(rename = "ClusterIP")]
    ClusterIp,
}

impl GatewayServiceType {
    /// Kubernetes' name of the type.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
        }
    }

    /// Why such a Service has no address.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::LoadBalancer => "has no address yet; does this cluster give any?",
            Self::NodePort => "has an address once the gateway's pod runs on a node that is ready",
            Self::ClusterIp => "has no address yet",
        }
    }
}

/// Settings of this cluster's gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewaySettings {
    /// As a donor: type of the gateway's Service.
    pub service_type: GatewayServiceType,
    /// As a donor: UDP port of that Service.
    pub port: u16,
    /// As a donor, with `NodePort`: the node's port; absent: Kubernetes chooses one.
    pub node_port: Option<u16>,
    /// As a donor, with `LoadBalancer`: the requested address.
    pub load_balancer_ip: Option<IpAddr>,
    /// MTU of the tunnel: the same on both sides.
    pub mtu: u16,
    /// Namespace of the templates; absent: Liqo's.
    pub template_namespace: Option<String>,
    /// As a donor: the `WgGatewayServerTemplate`.
    pub server_template: String,
    /// As an origin: the `WgGatewayClientTemplate`.
    pub client_template: String,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            service_type: GatewayServiceType::default(),
            port: 51_840,
            node_port: None,
            load_balancer_ip: None,
            mtu: 1_340,
            template_namespace: None,
            server_template: "wireguard-server".to_owned(),
            client_template: "wireguard-client".to_owned(),
        }
    }
}

impl GatewaySettings {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        if self.port == 0 {
            let reason = "want 1 to 65535; 51840 is Liqo's own";
            return Err(InvalidSetting::new("liqo.gateway.port", self.port, reason));
        }
        if let Some(port) = self.node_port
            && (self.service_type != GatewayServiceType::NodePort || port < MIN_PRIVATE_PORT)
        {
            let reason = "want a port of the range that the cluster has for NodePorts, usually 30000 to 32767, with \
                serviceType: NodePort";
            return Err(InvalidSetting::new("liqo.gateway.nodePort", port.to_string(), reason.to_owned()));
        }
        if let Some(address) = self.load_balancer_ip.filter(|_| self.service_type != GatewayServiceType::LoadBalancer) {
            let reason = "only serviceType: LoadBalancer uses it; leave it out";
            return Err(InvalidSetting::new("liqo.gateway.loadBalancerIp", address.to_string(), reason.to_owned()));
        }
        if !MTU.contains(&self.mtu) {
            let (least, most) = MTU.into_inner();
            let reason = format!("want {least} to {most}, the same on both sides; 1340 is Liqo's own");
            return Err(InvalidSetting::new("liqo.gateway.mtu", self.mtu.to_string(), reason));
        }
        let label = "want a DNS label: lower-case letters, digits and '-'";
        for (field, name) in [
            ("liqo.gateway.templateNamespace", self.template_namespace.as_ref()),
            ("liqo.gateway.serverTemplate", Some(&self.server_template)),
            ("liqo.gateway.clientTemplate", Some(&self.client_template)),
        ] {
            if let Some(name) = name.filter(|name| !is_dns_label(name)) {
                return Err(InvalidSetting::new(field, name.clone(), label.to_owned()));
            }
        }
        Ok(())
    }
}
