//! At the gateway: follows the cluster's Node objects, and publishes the remote networks to its other nodes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_fabric::{ClusterNode, MAX_NODES, Published};
use comity_agent_kubernetes::call::{apply, call_opt, own_labels};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::delivery_error::DeliveryError;
use futures::StreamExt as _;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::{CONFIG_MAP, KEY};
use crate::reconcile::parts::{Member, Tunnels};

/// Pause after a failure.
const PUBLISH_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of the checks for changes and deletions of the ConfigMap by others.
const CONFIG_MAP_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Changes are collected for this long: nodes are often added in groups.
const NODE_BATCH_WINDOW: Duration = Duration::from_millis(100);
/// Most pod networks of one node: usually one of each family.
const MAX_NETWORKS_OF_A_NODE: usize = 8;

/// Routes other nodes' pods to the tunnels and back, until stopped.
pub async fn run(
    member: Arc<Member>,
    tunnels: Arc<Tunnels>,
    client: Client,
    namespace: String,
    stop: CancellationToken,
) {
    let Some(changed) = tunnels.fabric.published_changed() else { return };
    let config = watcher::Config::default().labels("liqo.io/type!=virtual-node");
    let mut events = watcher(Api::<Node>::all(client.clone()), config).default_backoff().boxed();
    let own = member.pod_networks();
    let api = Api::namespaced(client, &namespace);
    let mut publisher = Publisher { api, used: false, written: None, failures: FailureLog::default() };
    let (mut nodes, mut applied, mut failures) = (WatchCache::default(), None, FailureLog::default());
    loop {
        let mut due = CONFIG_MAP_CHECK_INTERVAL;
        if nodes.is_complete() {
            let wanted = cluster_nodes(nodes.facts(), &own);
            if applied.as_ref() != Some(&wanted) {
                match tunnels.fabric.set_nodes(&wanted) {
                    Ok(()) => {
                        applied = Some(wanted);
                        failures.cleared("nodes");
                    }
                    Err(error) => {
                        due = PUBLISH_RETRY_INTERVAL;
                        if failures.is_new("nodes", &error.to_string()) {
                            tracing::warn!(%error, "pods of other nodes cannot reach the tunnels yet");
                        }
                    }
                }
            }
        }
        if applied.is_some() && !publisher.publish(tunnels.fabric.published()).await {
            due = PUBLISH_RETRY_INTERVAL;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed.notified() => {}
            Some(event) = events.next() => match event {
                Ok(event) => if !nodes.take(event, entry) {
                    continue; // Most events are heartbeats.
                },
                Err(error) => tracing::debug!(%error, "the watch of nodes broke; it restarts"),
            },
            () = tokio::time::sleep(due) => {}
        }
        tokio::time::sleep(NODE_BATCH_WINDOW).await;
    }
}

/// The facts that are kept of a node.
fn entry(node: &Node) -> Option<(String, Option<ClusterNode>)> {
    let labels = node.labels();
    let label = |key: &str| labels.get(key).map(String::as_str);
    let is_virtual = label("type") == Some("virtual-kubelet") || label("liqo.io/type") == Some("virtual-node");
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = addresses.filter(|address| address.type_ == "InternalIP");
    let address = internal.filter_map(|address| address.address.parse::<Ipv4Addr>().ok()).next();
    let is_plain = |address: &Ipv4Addr| {
        !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
    };
    let spec = node.spec.as_ref();
    let several = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
    let networks = several.chain(spec.and_then(|spec| spec.pod_cidr.as_ref())).take(MAX_NETWORKS_OF_A_NODE);
    let pod_networks = networks.filter_map(|net| net.parse::<Ipv4Net>().ok()).map(|net| net.trunc()).collect();
    let fact = address.filter(is_plain).filter(|_| !is_virtual).map(|address| ClusterNode { address, pod_networks });
    Some((node.name_any(), fact))
}

/// The nodes in order, up to the limit, and only those of their pod networks that are within this cluster's.
fn cluster_nodes<'a>(nodes: impl Iterator<Item = &'a ClusterNode>, own: &[Ipv4Net]) -> Vec<ClusterNode> {
    let mut nodes: Vec<ClusterNode> = nodes.cloned().collect();
    nodes.sort_unstable();
    nodes.dedup_by_key(|node| node.address);
    if nodes.len() > MAX_NODES {
        tracing::warn!(
            nodes = nodes.len(),
            limit = MAX_NODES,
            "pods of the nodes above the limit cannot reach the tunnels"
        );
        nodes.truncate(MAX_NODES);
    }
    for node in &mut nodes {
        node.pod_networks.retain(|net| own.iter().any(|own| own.contains(net)));
    }
    nodes
}

/// The content of the ConfigMap, as far as known.
struct KnownConfigMap {
    published: Option<Published>,
    generation: u64,
    seen: Instant,
}

/// Maintains the ConfigMap.
struct Publisher {
    api: Api<ConfigMap>,
    /// Whether it was ever needed.
    used: bool,
    written: Option<KnownConfigMap>,
    failures: FailureLog,
}

impl Publisher {
    /// Publishes this content; false if the caller must try again.
    async fn publish(&mut self, wanted: Option<Published>) -> bool {
        match self.try_publish(wanted).await {
            Ok(()) => {
                self.failures.cleared(CONFIG_MAP);
                true
            }
            Err(error) => {
                if self.failures.is_new(CONFIG_MAP, &error.to_string()) {
                    tracing::warn!(
                        %error,
                        "other nodes do not get the remote networks; are the rights in deploy/agent/tun/nodes.yaml \
                         applied?"
                    );
                }
                false
            }
        }
    }

    async fn try_publish(&mut self, wanted: Option<Published>) -> Result<(), DeliveryError> {
        // A cluster of one node needs neither the ConfigMap nor the right to read it.
        self.used |= wanted.is_some();
        if !self.used {
            return Ok(());
        }
        let (seen, generation) = match &self.written {
            Some(written) if written.seen.elapsed() < CONFIG_MAP_CHECK_INTERVAL => {
                (written.published.clone(), written.generation)
            }
            _ => {
                let found = call_opt("read ConfigMap comity-fabric", self.api.get(CONFIG_MAP)).await?;
                let text = found.and_then(|map| map.data?.remove(KEY));
                let read = text.and_then(|text| Published::read(&text).ok());
                let (published, generation) =
                    read.map_or((None, 0), |(published, generation)| (Some(published), generation));
                self.written = Some(KnownConfigMap { published: published.clone(), generation, seen: Instant::now() });
                (published, generation)
            }
        };
        let is_nothing = |published: &Option<Published>| published.as_ref().is_none_or(Published::is_empty);
        if seen == wanted || (is_nothing(&seen) && is_nothing(&wanted)) {
            return Ok(());
        }
        // Without other nodes or without peerings, nothing is beyond the tunnels.
        let emptied = seen.map(|seen| Published { pod_networks: BTreeSet::new(), api_routes: BTreeSet::new(), ..seen });
        let Some(document) = wanted.or(emptied) else { return Ok(()) };
        let generation = generation.wrapping_add(1);
        let mut map = ConfigMap::default();
        map.metadata.name = Some(CONFIG_MAP.to_owned());
        map.metadata.labels = Some(own_labels([]));
        map.data = Some([(KEY.to_owned(), document.document(generation))].into());
        apply(&self.api, &map).await?;
        tracing::info!(
            generation,
            networks = document.pod_networks.len(),
            "published the remote networks for other nodes"
        );
        self.written = Some(KnownConfigMap { published: Some(document), generation, seen: Instant::now() });
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn node(address: &str, cidrs: &[&str], label: &str) -> Option<ClusterNode> {
        let text = serde_json::json!({
            "metadata": { "name": "n", "labels": { "liqo.io/type": label } },
            "spec": { "podCIDRs": cidrs },
            "status": { "addresses": [
                { "type": "Hostname", "address": "n" },
                { "type": "ExternalIP", "address": "203.0.113.77" },
                { "type": "InternalIP", "address": "fd00::1" },
                { "type": "InternalIP", "address": address },
            ] }
        });
        entry(&serde_json::from_value(text).unwrap()).unwrap().1
    }

    #[test]
    fn real_nodes_with_an_ipv4_address_count() {
        let found = node("198.51.100.11", &["10.1.1.0/24", "fd01::/64"], "").unwrap();
        assert_eq!(found.address, Ipv4Addr::new(198, 51, 100, 11));
        assert_eq!(found.pod_networks, BTreeSet::from(["10.1.1.0/24".parse().unwrap()]));
        assert_eq!(node("198.51.100.11", &[], "virtual-node"), None);
        assert_eq!(node("127.0.0.1", &[], ""), None);
    }

    #[test]
    fn a_node_claims_no_more_than_pods_of_its_cluster() {
        let own = ["10.1.0.0/16".parse().unwrap()];
        let nodes = [
            node("198.51.100.12", &["10.1.2.0/24", "0.0.0.0/0", "10.9.0.0/24"], "").unwrap(),
            node("198.51.100.11", &[], "").unwrap(),
        ];
        let nodes = cluster_nodes(nodes.iter(), &own);
        assert_eq!(nodes[0].address, Ipv4Addr::new(198, 51, 100, 11));
        assert_eq!(nodes[1].pod_networks, BTreeSet::from(["10.1.2.0/24".parse().unwrap()]));
    }
}
