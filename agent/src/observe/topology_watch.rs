//! Watches NodeResourceTopology objects, if the cluster has their definition.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::watch_cache::WatchCache;
use futures::StreamExt as _;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use super::topology::NodeTopology;

const GROUP: &str = "topology.node.k8s.io";
const VERSION: &str = "v1alpha2";
const PLURAL: &str = "noderesourcetopologies";
/// How often the definition and the right to read it are checked.
const CRD_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// By node name; `None` until it is known whether there are any.
pub(crate) type Topologies = Option<Arc<BTreeMap<String, NodeTopology>>>;

/// Publishes all objects whenever one changes. Ends with the receiver.
pub(crate) async fn follow(client: Client, publish: watch::Sender<Topologies>) {
    let mut failures = FailureLog::default();
    while !publish.is_closed() {
        match client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await {
            Ok(list) if list.resources.iter().any(|resource| resource.name == PLURAL) => {
                let Some(error) = watch_all(&client, &publish).await else { return };
                if failures.is_new("watch", &error.to_string()) {
                    tracing::warn!(%error, "NodeResourceTopology objects cannot be read and are left out; apply \
                        deploy/agent/node-topology.yaml");
                }
            }
            // Not installed.
            Ok(_) | Err(kube::Error::Api(_)) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot check whether there are NodeResourceTopology objects");
                tokio::time::sleep(CRD_CHECK_INTERVAL / 60).await;
                continue;
            }
        }
        // Known objects are kept.
        publish.send_if_modified(|known| known.is_none() && known.replace(Arc::default()).is_none());
        tokio::time::sleep(CRD_CHECK_INTERVAL).await;
    }
}

/// Watches until the API server refuses that, and returns the error; `None` when the receiver is gone.
async fn watch_all(client: &Client, publish: &watch::Sender<Topologies>) -> Option<kube::Error> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "NodeResourceTopology");
    let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    let objects = Api::<DynamicObject>::all_with(client.clone(), &kind);
    let mut events = pin!(watcher(objects, watcher::Config::default()).default_backoff());
    let mut mirror = WatchCache::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if mirror.take(event, entry) && mirror.is_complete() {
                    let all: BTreeMap<String, NodeTopology> = mirror.facts().cloned().collect();
                    if publish.send(Some(Arc::new(all))).is_err() {
                        return None;
                    }
                }
            }
            Err(watcher::Error::InitialListFailed(error @ kube::Error::Api(_))) => return Some(error),
            Err(error) => tracing::debug!(%error, "the watch of NodeResourceTopology objects broke; it restarts"),
        }
    }
    None
}

fn entry(object: &DynamicObject) -> Option<(String, Option<(String, NodeTopology)>)> {
    let name = object.metadata.name.clone()?;
    let topology = NodeTopology::read(&object.data);
    Some((name.clone(), topology.map(|topology| (name, topology))))
}
