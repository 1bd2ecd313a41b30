//! Watches the virtual nodes of leases.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use comity_agent_kubernetes::pod_request::{Amounts, CPU};
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_policy::quantity;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;

use crate::REMOTE_CLUSTER_LABEL;

/// Virtual nodes of leases by name, without idle ones.
pub(super) type Nodes = BTreeMap<String, NodeFacts>;

/// The stored fields of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFacts {
    pub(super) name: String,
    /// Liqo id of the donor.
    pub(super) donor: String,
    /// Status of the condition Ready: "True", "False" or "Unknown".
    pub(super) ready: String,
    /// The capacity for its pods.
    pub(super) allocatable: Amounts,
}

/// Publishes the nodes whenever one changes; ends with its receivers.
pub(super) async fn follow(client: Client, publish: watch::Sender<Arc<Nodes>>) {
    let selector = format!("{LEASE_LABEL},liqo.io/type=virtual-node");
    let config = watcher::Config::default().labels(&selector);
    let mut events = pin!(watcher(Api::<Node>::all(client), config).default_backoff());
    let mut mirror = WatchCache::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if mirror.take(event, |node| Some((node.name_any(), facts(node)))) {
                    let nodes = mirror.facts().map(|facts: &NodeFacts| (facts.name.clone(), facts.clone())).collect();
                    if publish.send(Arc::new(nodes)).is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the watch of virtual nodes broke; it restarts"),
        }
    }
}

fn facts(node: &Node) -> Option<NodeFacts> {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let allocatable = status.and_then(|status| status.allocatable.as_ref()).into_iter().flatten();
    let amount =
        |name: &str, text: &str| if name == CPU { quantity::milli_floor(text) } else { quantity::ones_floor(text) };
    Some(NodeFacts {
        name: node.name_any(),
        donor: node.labels().get(REMOTE_CLUSTER_LABEL)?.clone(),
        ready: ready.map(|ready| ready.status.clone()).unwrap_or_default(),
        allocatable: allocatable.filter_map(|(name, text)| Some((name.clone(), amount(name, &text.0)?))).collect(),
    })
}
