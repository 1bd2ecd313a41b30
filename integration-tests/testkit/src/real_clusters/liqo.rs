//! Renders Liqo's chart for the clusters before they start.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::node_files::{DONOR, NodeSettings, ORIGIN, SECOND_DONOR};
use super::{RealClustersError, Where};
use crate::binaries::{Binaries, LiqoVersion};

/// Its programs, as its chart names them; their files in images have the same names.
pub(super) const LIQO_PROGRAMS: [&str; 4] = ["liqo-controller-manager", "crd-replicator", "webhook", "virtual-kubelet"];
/// Liqo's namespace.
pub const LIQO_NAMESPACE: &str = "liqo";

/// How Liqo counts offloaded pods against their quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitsEnforcement {
    /// Requests count; a pod without requests counts nothing.
    #[default]
    None,
    /// Pods must have requests.
    Soft,
    /// Pods must have requests and limits, and limits count.
    Hard,
}

impl LimitsEnforcement {
    fn value(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Soft => "Soft",
            Self::Hard => "Hard",
        }
    }
}

/// Liqo in one cluster.
#[derive(Debug, Clone)]
pub struct LiqoCluster {
    /// The id under which its peers know it.
    pub id: String,
    /// The address of its API server that it hands to its peers: a URL.
    pub api_server: String,
    /// Arguments of its virtual kubelets beyond the chart's. They are fixed when a virtual node is made.
    pub virtual_kubelet_args: Vec<String>,
}

/// Liqo in the clusters, without its network module: pods of different clusters communicate without Liqo.
#[derive(Debug, Clone)]
pub struct LiqoConfig {
    /// The version of all, whose programs must be installed.
    pub version: LiqoVersion,
    /// Liqo in the origin.
    pub origin: LiqoCluster,
    /// Liqo in the donor.
    pub donor: LiqoCluster,
    /// Liqo in the second donor, if there is one.
    pub second_donor: LiqoCluster,
    /// How the clusters count pods.
    pub limits: LimitsEnforcement,
}

impl Default for LiqoConfig {
    /// The newest version. Each cluster's id is its name and each hands out its node's address. A cluster's own pod
    /// addresses are passed on unchanged, tokens of its ServiceAccounts are not, and a virtual kubelet that is replaced
    /// takes over in seconds.
    fn default() -> Self {
        Self {
            version: LiqoVersion::default(),
            origin: LiqoCluster::of(&ORIGIN),
            donor: LiqoCluster::of(&DONOR),
            second_donor: LiqoCluster::of(&SECOND_DONOR),
            limits: LimitsEnforcement::default(),
        }
    }
}

impl LiqoConfig {
    /// Liqo at a place. The router has none.
    pub(super) fn at(&self, place: Where) -> Option<&LiqoCluster> {
        match place {
            Where::Origin => Some(&self.origin),
            Where::Donor => Some(&self.donor),
            Where::SecondDonor => Some(&self.second_donor),
            Where::Router => None,
        }
    }
}

impl LiqoCluster {
    fn of(node: &NodeSettings) -> Self {
        let args = [
            "--enable-apiserver-support=false",
            "--vk-lease-duration=4s",
            "--vk-lease-renew-interval=3s",
            "--vk-lease-retry-period=1s",
            "--node-ping-interval=3s",
        ];
        let mut virtual_kubelet_args = vec![format!("--local-podcidr={}", node.pod_network)];
        virtual_kubelet_args.extend(args.map(str::to_owned));
        Self { id: node.name.to_owned(), api_server: node.server_url(), virtual_kubelet_args }
    }

    /// The chart's values: no network, no telemetry, and no metrics agent, whose aggregated API would break discovery
    /// when its pod is not there.
    fn values(&self, version: LiqoVersion, limits: LimitsEnforcement) -> serde_json::Value {
        json!({
            "tag": version.tag(),
            "networking": {"enabled": false},
            "telemetry": {"enabled": false},
            "proxy": {"enabled": false},
            "metricAgent": {"enabled": false},
            "storage": {"enabled": false},
            "requirements": {"kernel": {"enabled": false}},
            "offloading": {"disableNetworkCheck": true},
            "controllerManager": {
                "config": {"enableResourceEnforcement": true, "defaultLimitsEnforcement": limits.value()},
            },
            "discovery": {"config": {"clusterID": self.id}},
            "apiServer": {"address": self.api_server},
            "virtualKubelet": {"extra": {"args": self.virtual_kubelet_args}},
        })
    }
}

/// Renders the objects of Liqo in one cluster into `dir`, where the script looks for them.
pub(super) fn render(
    dir: &Path,
    binaries: &Binaries,
    config: &LiqoConfig,
    cluster: &LiqoCluster,
) -> Result<(), RealClustersError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RealClustersError::Io { path, source }
    };
    let values = dir.join("liqo-values.json");
    fs::write(&values, cluster.values(config.version, config.limits).to_string()).map_err(io(&values))?;
    let renderer = binaries.program("render-chart");
    let output = Command::new(&renderer)
        .arg(binaries.program(&config.version.file("chart")))
        .arg(LIQO_NAMESPACE)
        .arg(&values)
        .stdin(Stdio::null())
        .output()
        .map_err(io(&renderer))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(RealClustersError::Chart { cluster: cluster.id.clone(), said });
    }
    let chart =
        |error: serde_json::Error| RealClustersError::Chart { cluster: cluster.id.clone(), said: error.to_string() };
    let list = without_network(serde_json::from_slice(&output.stdout).map_err(chart)?);
    let objects = dir.join("liqo.json");
    fs::write(&objects, list.to_string()).map_err(io(&objects))
}

/// Removes the objects of Liqo's network, which the chart renders although the network is off and no controller handles
/// them.
fn without_network(mut list: serde_json::Value) -> serde_json::Value {
    if let Some(items) = list.get_mut("items").and_then(|items| items.as_array_mut()) {
        items.retain(|item| {
            let version = item.get("apiVersion").and_then(serde_json::Value::as_str).unwrap_or_default();
            !(version.starts_with("networking.liqo.io/") || version.starts_with("ipam.liqo.io/"))
        });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_gets_the_clusters_settings() {
        let config = LiqoConfig { limits: LimitsEnforcement::Hard, ..LiqoConfig::default() };
        let values = config.origin.values(config.version, config.limits);
        assert_eq!(values["tag"], "v1.2.0");
        assert_eq!(values["discovery"]["config"]["clusterID"], "origin");
        assert_eq!(values["apiServer"]["address"], "https://198.51.100.10:6443");
        assert_eq!(values["controllerManager"]["config"]["defaultLimitsEnforcement"], "Hard");
        assert_eq!(values["virtualKubelet"]["extra"]["args"][0], "--local-podcidr=10.210.0.0/24");
        assert_eq!(
            config.donor.values(config.version, config.limits)["virtualKubelet"]["extra"]["args"][0],
            "--local-podcidr=10.220.0.0/24"
        );
    }

    #[test]
    fn objects_of_the_network_are_left_out() {
        let item = |version: &str| json!({"apiVersion": version, "kind": "X"});
        let list = json!({"kind": "List", "items": [item("ipam.liqo.io/v1alpha1"), item("v1"), item("networking.liqo.io/v1beta1")]});
        assert_eq!(without_network(list)["items"], json!([item("v1")]));
    }
}
