//! The section `liqo` of the agent's configuration.

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::address::is_host_port;
use crate::kubernetes::dns_label::is_dns_label;
use crate::liqo::donor::pod_metrics::PodMetricsSettings;
use crate::liqo::network::GatewaySettings;
use crate::model::settings::SettingChecks;

/// Pod CIDRs that a key bundle carries, and networks that peers may have.
const MAX_POD_CIDRS: usize = 8;
const MAX_PEER_NETWORKS: usize = 64;
/// The widest network that pods of one cluster have.
const WIDEST_POD_CIDR: u8 = 8;

/// Least and most seconds between two tokens of an origin: below, brokers would carry little else; above, a token is no
/// longer short-lived.
const TOKEN_ROTATION: std::ops::RangeInclusive<u64> = 15..=57_600;

/// How clusters that borrow from this one prove to its API server who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiqoAuthentication {
    /// By client certificates, for which the keys of both Liqos are exchanged. They end after a year, and are renewed
    /// by Liqo.
    #[default]
    KeysExchange,
    /// By tokens of a ServiceAccount that the agent makes and replaces. Both clusters need Liqo 1.2.
    Token,
}

/// What carries pods between clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiqoNetworkName {
    /// The fabric (`fabric.mode: tun`), or a network that all clusters have in common.
    #[default]
    Comity,
    /// The gateways of Liqo's own networking module. It remaps networks that overlap.
    Liqo,
}

/// Virtual nodes through Liqo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LiqoSettings {
    /// Whether this cluster lends and borrows virtual nodes.
    pub enabled: bool,
    /// Namespace in which Liqo is installed.
    pub namespace: String,
    /// Namespace of the agent itself: there it keeps what its admission policies are told.
    pub agent_namespace: String,
    /// What carries pods between clusters; both sides of a peering must have the same.
    pub network: LiqoNetworkName,
    /// With `network: liqo`: how this cluster's gateways are made.
    pub gateway: GatewaySettings,
    /// With `network: comity`: networks that this cluster's pods have addresses in; empty: those that its nodes name.
    pub pod_cidrs: Vec<Ipv4Net>,
    /// "host:port" under which Liqo advertises this cluster's API server, by a name that its certificate carries;
    /// empty: as in the kubeconfig.
    pub api_server: String,
    /// Only with clusters whose fabric routes pods, as this one's (`fabric.mode: tun`). False where pods and API
    /// servers of all clusters reach each other without a fabric. With `network: liqo` it is this cluster's fabric
    /// alone that counts, and only for the API servers of donors.
    pub require_tun: bool,
    /// Networks that other clusters' pods may have addresses in; empty: any that this cluster does not use.
    pub peer_networks: Vec<Ipv4Net>,
    /// How clusters that borrow from this one prove who they are; peerings that stand stay as they began.
    pub authentication: LiqoAuthentication,
    /// With `authentication: token`: seconds after which a token is replaced. It lives half as long again, ten minutes
    /// at least.
    pub token_rotation_seconds: u64,
    /// Whether an offloaded namespace has the same name on the donor, so that every name of a Service works there; the
    /// donor must have none of that name.
    pub same_namespace_names: bool,
    /// Metrics of offloaded pods for the clusters that they come from; absent: none. For donors with a metrics-server.
    pub pod_metrics: Option<PodMetricsSettings>,
}

impl Default for LiqoSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            namespace: "liqo".to_owned(),
            agent_namespace: "comity-system".to_owned(),
            network: LiqoNetworkName::default(),
            gateway: GatewaySettings::default(),
            pod_cidrs: Vec::new(),
            api_server: String::new(),
            require_tun: true,
            peer_networks: Vec::new(),
            authentication: LiqoAuthentication::default(),
            token_rotation_seconds: 2_400,
            same_namespace_names: false,
            pod_metrics: None,
        }
    }
}

impl LiqoSettings {
    pub(super) fn check(&self, has_kubernetes: bool, checks: &mut SettingChecks) {
        if self.enabled && !has_kubernetes {
            let reason = "there is no Kubernetes here (inventoryFile is given); leave it out";
            checks.refuse("liqo.enabled", self.enabled, reason);
        }
        for (field, name) in [("liqo.namespace", &self.namespace), ("liqo.agentNamespace", &self.agent_namespace)] {
            if !is_dns_label(name) {
                let reason = "want the name of a namespace: lower-case letters and digits, with '-' between them";
                checks.refuse(field, name, reason);
            }
        }
        for (field, networks, most) in [
            ("liqo.podCidrs", &self.pod_cidrs, MAX_POD_CIDRS),
            ("liqo.peerNetworks", &self.peer_networks, MAX_PEER_NETWORKS),
        ] {
            if networks.len() > most {
                checks.refuse(field, networks.len(), format!("name at most {most}"));
            }
            if let Some(bad) = networks.iter().find(|network| network.addr() != network.network()) {
                checks.refuse(field, bad, format!("bits are set behind the prefix; write {}", bad.trunc()));
            }
        }
        if let Some(wide) = self.pod_cidrs.iter().find(|network| network.prefix_len() < WIDEST_POD_CIDR) {
            let reason =
                format!("no cluster's pods have so many addresses; write its own networks, /{WIDEST_POD_CIDR} at most");
            checks.refuse("liqo.podCidrs", wide, reason);
        }
        if self.network == LiqoNetworkName::Liqo && !self.pod_cidrs.is_empty() {
            let reason = "with network: liqo it is Liqo that knows them (ipam.podCIDR of its chart); leave it out";
            checks.refuse("liqo.podCidrs", self.pod_cidrs.len(), reason);
        }
        checks.take(self.gateway.check());
        if !TOKEN_ROTATION.contains(&self.token_rotation_seconds) {
            let (least, most) = TOKEN_ROTATION.into_inner();
            let reason = format!("want {least} to {most} seconds");
            checks.refuse("liqo.tokenRotationSeconds", self.token_rotation_seconds, reason);
        }
        if let Some(PodMetricsSettings { service, .. }) = &self.pod_metrics
            && !(is_dns_label(&service.namespace) && is_dns_label(&service.name) && service.port > 0)
        {
            let text = format!("{}/{}:{}", service.namespace, service.name, service.port);
            checks.refuse("liqo.podMetrics.service", text, "write DNS labels and a port from 1 to 65535");
        }
        if !self.api_server.is_empty() && (!is_host_port(&self.api_server) || self.api_server.ends_with(":0")) {
            checks.refuse("liqo.apiServer", &self.api_server, "write host:port, as in api.example.org:6443");
        }
    }
}
