//! The section `liqo` of the agent's configuration.

use std::collections::BTreeMap;

use comity_agent_liqo::donor::PolicySettings;
use comity_agent_liqo::donor::pod_metrics::PodMetricsSettings;
use comity_agent_liqo::network::GatewaySettings;
use comity_agent_model::settings::SettingChecks;
use comity_types::is_dns_label;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::address::is_host_port;
use crate::keys::bundle::MAX_POD_CIDRS;

/// Most networks of other clusters.
const MAX_PEER_NETWORKS: usize = 64;
/// Most donors whose API servers are listed: as many as there can be peerings.
const MAX_PEER_DONORS: usize = 1_024;
/// Shortest prefix of a pod CIDR.
const MIN_POD_CIDR_PREFIX: u8 = 8;

/// Bounds of the token rotation in seconds: shorter would load the brokers, longer tokens are not short-lived.
const TOKEN_ROTATION: std::ops::RangeInclusive<u64> = 15..=57_600;

/// How borrowers authenticate to this cluster's API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiqoAuthentication {
    /// By client certificates from a key exchange between the Liqos. They last a year, and Liqo renews them.
    #[default]
    KeysExchange,
    /// By short-lived ServiceAccount tokens that the agent rotates. Both clusters need Liqo 1.2.
    Token,
}

/// The network that carries pods between clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiqoNetworkName {
    /// The fabric (`fabric.mode: tun`), or a network that all clusters share.
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
    /// Namespace of the agent, for the parameters of its admission policies.
    pub agent_namespace: String,
    /// The network that carries pods between clusters; the same on both sides of a peering.
    pub network: LiqoNetworkName,
    /// With `network: liqo`: settings of this cluster's gateways.
    pub gateway: GatewaySettings,
    /// With `network: comity`: this cluster's pod CIDRs; empty: those of its nodes.
    pub pod_cidrs: Vec<Ipv4Net>,
    /// "host:port" at which Liqo advertises this cluster's API server, by a name in its certificate; empty: as in the
    /// kubeconfig.
    pub api_server: String,
    /// Whether both fabrics must route pods (`fabric.mode: tun`). False if pods and API servers of all clusters reach
    /// each other without a fabric. With `network: liqo` only this cluster's fabric counts, and only for donors' API
    /// servers.
    pub require_tun: bool,
    /// Where pods of other clusters keep their own addresses. Others are remapped, with `fabric.mode: tun` and
    /// `webhook`, or refused.
    pub peer_networks: Vec<Ipv4Net>,
    /// Where the API server of each donor may have its address, by the donor's name: this cluster's connections to it
    /// lead into the donor's tunnel. A donor that is not here lends this cluster no virtual nodes.
    pub peer_api_servers: BTreeMap<String, Vec<IpNet>>,
    /// How borrowers authenticate; existing peerings keep their method.
    pub authentication: LiqoAuthentication,
    /// With `authentication: token`: rotation period in seconds. A token lives half as long again, at least ten
    /// minutes.
    pub token_rotation_seconds: u64,
    /// Whether an offloaded namespace keeps its name on the donor, so that all Service names work; the donor must have
    /// no namespace of that name.
    pub same_namespace_names: bool,
    /// Serves metrics of offloaded pods to their origins; absent: off. For donors with a metrics-server.
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
            peer_api_servers: BTreeMap::new(),
            authentication: LiqoAuthentication::default(),
            token_rotation_seconds: 2_400,
            same_namespace_names: false,
            pod_metrics: None,
        }
    }
}

impl LiqoSettings {
    /// The admission policies that lending needs.
    #[must_use]
    pub fn policies(&self) -> PolicySettings {
        PolicySettings {
            agent_namespace: self.agent_namespace.clone(),
            liqo_namespace: self.namespace.clone(),
            same_names: self.same_namespace_names,
            ..PolicySettings::default()
        }
    }

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
        if self.peer_api_servers.len() > MAX_PEER_DONORS {
            let count = self.peer_api_servers.len();
            checks.refuse("liqo.peerApiServers", count, format!("name at most {MAX_PEER_DONORS}"));
        }
        for (donor, networks) in &self.peer_api_servers {
            if !is_dns_label(donor) || networks.len() > MAX_PEER_NETWORKS {
                let reason = format!(
                    "write names of donors, each with at most {MAX_PEER_NETWORKS} networks, as in {{north: [192.0.2.7/32]}}"
                );
                checks.refuse("liqo.peerApiServers", donor, reason);
            }
            if let Some(bad) = networks.iter().find(|network| network.addr() != network.network()) {
                let reason = format!("bits are set behind the prefix; write {}", bad.trunc());
                checks.refuse("liqo.peerApiServers", bad, reason);
            }
        }
        if let Some(wide) = self.pod_cidrs.iter().find(|network| network.prefix_len() < MIN_POD_CIDR_PREFIX) {
            let reason = format!(
                "no cluster has such a wide pod network; write its own networks, /{MIN_POD_CIDR_PREFIX} at most"
            );
            checks.refuse("liqo.podCidrs", wide, reason);
        }
        if self.network == LiqoNetworkName::Liqo && !self.pod_cidrs.is_empty() {
            let reason = "with network: liqo, Liqo determines them (ipam.podCIDR of its chart); leave it out";
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
