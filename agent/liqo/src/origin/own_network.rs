//! This cluster's network and Liqo, as key bundles carry them.

use std::collections::BTreeSet;

use comity_agent_kubernetes::call::{Pager, call, call_opt};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

use super::{LiqoOrigin, OriginSettings, own_id};
use crate::CONTROLLER_MANAGER;
use crate::version::{Version, version_of};

/// Most CIDRs in a key bundle: in a large cluster with one CIDR for each node, the operator configures one for all.
const MAX_POD_CIDRS: usize = 64;

/// This cluster's part of `ClusterNetwork`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNetwork {
    /// IPv4 CIDRs of its pods; none if Liqo's own network carries its pods.
    pub pod_cidrs: Vec<String>,
    /// Its Liqo cluster id.
    pub liqo_cluster_id: String,
    /// Version of its Liqo, as in "v1.2.0"; empty if neither its image's tag nor its chart's label says it.
    pub liqo_version: String,
}

/// Looks up this cluster's network and Liqo.
///
/// # Errors
/// [`DeliveryError`]; permanent if there are no pod CIDRs, or too many for a key bundle.
pub async fn own_network(client: &Client, settings: &OriginSettings) -> Result<OwnNetwork, DeliveryError> {
    let pod_cidrs = async {
        if settings.liqo_network {
            Ok(Vec::new())
        } else if settings.pod_cidrs.is_empty() {
            summarise(nodes_pod_cidrs(client).await?)
        } else {
            Ok(settings.pod_cidrs.clone())
        }
    };
    let namespace = &settings.liqo_namespace;
    let (pod_cidrs, liqo_cluster_id, liqo_version) =
        tokio::try_join!(pod_cidrs, own_id(client, namespace), liqo_version(client, namespace))?;
    Ok(OwnNetwork { pod_cidrs, liqo_cluster_id, liqo_version })
}

impl LiqoOrigin {
    /// This cluster's network and Liqo.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn own_network(&self) -> Result<OwnNetwork, DeliveryError> {
        own_network(&self.client, &self.settings).await
    }

    /// The version of this cluster's Liqo; `None` if unknown.
    pub(super) async fn liqo_version(&self) -> Result<Option<Version>, DeliveryError> {
        Ok(Version::parse(&liqo_version(&self.client, &self.settings.liqo_namespace).await?))
    }
}

async fn nodes_pod_cidrs(client: &Client) -> Result<BTreeSet<String>, DeliveryError> {
    let nodes = Api::<Node>::all(client.clone());
    let mut pager = Pager::new(ListParams::default());
    let mut cidrs = BTreeSet::new();
    while let Some(page) = pager.page() {
        let list = call("list nodes for their pod CIDRs", nodes.list(page)).await?;
        pager.turn(&list.metadata);
        for spec in list.items.into_iter().filter_map(|node| node.spec) {
            cidrs.extend(spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect()));
        }
    }
    Ok(cidrs)
}

/// The IPv4 CIDRs in order, with adjacent ones merged.
fn summarise(cidrs: BTreeSet<String>) -> Result<Vec<String>, DeliveryError> {
    let mut nets: BTreeSet<(u32, u8)> = cidrs.iter().filter_map(|cidr| parse(cidr)).collect();
    loop {
        // Two halves of the same net, or one inside another.
        let joined = nets.iter().find_map(|&(base, length)| {
            let inside = nets.iter().any(|&(other, shorter)| shorter < length && (base ^ other) & mask(shorter) == 0);
            let half = length > 0 && base & mask(length - 1) == base;
            let sibling = length > 0 && nets.contains(&(base | (1 << (32 - u32::from(length))), length));
            (inside || (half && sibling)).then_some(((base, length), inside))
        });
        let Some(((base, length), inside)) = joined else { break };
        nets.remove(&(base, length));
        if !inside {
            nets.remove(&(base | (1 << (32 - u32::from(length))), length));
            nets.insert((base, length - 1));
        }
    }
    let remedy = "set liqo.podCidrs to the network that pods of this cluster get their addresses from";
    if nets.is_empty() {
        let message = format!("no node has an IPv4 CIDR in spec.podCIDRs; {remedy}");
        return Err(DeliveryError::permanent("no-pod-cidrs", message));
    }
    if nets.len() > MAX_POD_CIDRS {
        let message = format!(
            "the nodes have {} separate pod CIDRs, a key bundle has at most {MAX_POD_CIDRS}; {remedy}",
            nets.len()
        );
        return Err(DeliveryError::permanent("too-many-pod-cidrs", message));
    }
    Ok(nets.into_iter().map(|(base, length)| format!("{}/{length}", std::net::Ipv4Addr::from(base))).collect())
}

fn parse(cidr: &str) -> Option<(u32, u8)> {
    let (address, length) = cidr.split_once('/')?;
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    let length: u8 = length.parse().ok().filter(|length| *length <= 32)?;
    Some((u32::from(address) & mask(length), length))
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// Liqo's version, from the controller manager's Deployment.
async fn liqo_version(client: &Client, namespace: &str) -> Result<String, DeliveryError> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let operation = format!("read Deployment {namespace}/{CONTROLLER_MANAGER}");
    let Some(found) = call_opt(&operation, deployments.get(CONTROLLER_MANAGER)).await? else {
        let message =
            format!("there is no Deployment {namespace}/{CONTROLLER_MANAGER}; install Liqo, or set liqo.namespace");
        return Err(DeliveryError::permanent("no-liqo", message));
    };
    Ok(version_of(&found).map(|version| format!("v{version}")).unwrap_or_default())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn summary(cidrs: &[&str]) -> Result<Vec<String>, DeliveryError> {
        summarise(cidrs.iter().map(|cidr| (*cidr).to_owned()).collect())
    }

    #[test]
    fn neighbouring_nodes_are_one_network() {
        assert_eq!(summary(&["10.0.1.0/24", "10.0.0.0/24", "fd00::/64"]).unwrap(), ["10.0.0.0/23"]);
        assert_eq!(summary(&["10.0.1.0/24", "10.0.2.0/24"]).unwrap(), ["10.0.1.0/24", "10.0.2.0/24"]);
        let all: Vec<String> = (0..=255).map(|node| format!("10.7.{node}.0/24")).collect();
        assert_eq!(summarise(all.into_iter().collect()).unwrap(), ["10.7.0.0/16"]);
        assert_eq!(summary(&["10.0.0.0/8", "10.9.0.0/24"]).unwrap(), ["10.0.0.0/8"]);
        assert_eq!(summary(&["0.0.0.0/1", "128.0.0.0/1"]).unwrap(), ["0.0.0.0/0"]);
    }

    #[test]
    fn none_and_too_many_name_the_remedy() {
        assert!(summary(&["fd00::/64", "nonsense", "10.0.0.0/33"]).unwrap_err().to_string().contains("liqo.podCidrs"));
        let many: BTreeSet<String> = (0..65).map(|node| format!("10.{node}.1.0/24")).collect();
        assert!(summarise(many).unwrap_err().to_string().contains("65 separate"));
    }
}
