//! Watches namespaces that opted in, their GPU pods, and gated pods in all namespaces.

use std::collections::BTreeMap;

use comity_agent_kubernetes::watch_cache::WatchCache;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio_stream::StreamMap;

use super::facts::namespace::{Rules, rules};
use super::facts::pod::PodFacts;
use super::settings::BurstSettings;
use super::{GATE, OFFLOAD_LABEL};

type Watch<K> = BoxStream<'static, watcher::Result<Event<K>>>;
type NamespaceRules = (String, Result<Rules, String>);

/// Watch caches of namespaces and pods.
pub(super) struct ClusterWatch {
    client: kube::Client,
    settings: BurstSettings,
    namespace_events: Watch<PartialObjectMeta<Namespace>>,
    namespaces: WatchCache<NamespaceRules>,
    held_events: Watch<Pod>,
    held: WatchCache<PodFacts>,
    pod_events: StreamMap<String, Watch<Pod>>,
    pods: BTreeMap<String, WatchCache<PodFacts>>,
}

impl ClusterWatch {
    pub(super) fn start(client: kube::Client, settings: BurstSettings) -> Self {
        // With any value: an invalid one is reported on the namespace's pods.
        let opted_in = watcher::Config::default().labels(OFFLOAD_LABEL);
        Self {
            namespace_events: watcher::watcher(Api::all(client.clone()), opted_in).default_backoff().boxed(),
            namespaces: WatchCache::default(),
            held_events: watcher::watcher(Api::all(client.clone()), watcher::Config::default().labels(GATE))
                .default_backoff()
                .boxed(),
            held: WatchCache::default(),
            pod_events: StreamMap::new(),
            pods: BTreeMap::new(),
            client,
            settings,
        }
    }

    /// Waits for an event; true if it changed anything.
    pub(super) async fn changed(&mut self) -> bool {
        tokio::select! {
            Some(event) = self.namespace_events.next() => {
                let changed = taken("namespaces", event).is_some_and(|event| {
                    self.namespaces.take(event, |namespace| {
                        let name = namespace.metadata.name.clone()?;
                        let rules = rules(namespace, &self.settings).map(|rules| (name.clone(), rules));
                        Some((name, rules))
                    })
                });
                if changed {
                    self.follow_namespaces();
                }
                changed
            }
            Some(event) = self.held_events.next() => {
                taken("gated pods", event).is_some_and(|event| self.held.take(event, entry))
            }
            Some((namespace, event)) = self.pod_events.next(), if !self.pod_events.is_empty() => {
                let event = taken("pods", event);
                let mirror = self.pods.entry(namespace).or_default();
                event.is_some_and(|event| mirror.take(event, entry))
            }
            else => std::future::pending().await,
        }
    }

    fn follow_namespaces(&mut self) {
        let wanted: Vec<String> = self.namespaces.facts().map(|(name, _)| name.clone()).collect();
        self.pods.retain(|name, _| wanted.contains(name));
        let gone: Vec<String> = self.pod_events.keys().filter(|name| !wanted.contains(name)).cloned().collect();
        for name in gone {
            self.pod_events.remove(&name);
        }
        for name in wanted {
            if !self.pod_events.contains_key(&name) {
                let api = Api::<Pod>::namespaced(self.client.clone(), &name);
                let stream = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
                self.pod_events.insert(name.clone(), stream);
                self.pods.insert(name, WatchCache::default());
            }
        }
    }

    /// Whether every first list is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.namespaces.is_complete() && self.held.is_complete() && self.pods.values().all(WatchCache::is_complete)
    }

    pub(super) fn namespaces(&self) -> BTreeMap<String, Result<Rules, String>> {
        self.namespaces.facts().cloned().collect()
    }

    /// Pods by UID.
    pub(super) fn pods(&self) -> BTreeMap<String, PodFacts> {
        let opted_in = self.pods.values().flat_map(WatchCache::facts);
        // In other namespaces only pods that are still gated.
        let others = self.held.facts().filter(|pod| !self.pods.contains_key(&pod.pod.namespace) && pod.is_gated());
        opted_in.chain(others).map(|pod| (pod.pod.uid.clone(), pod.clone())).collect()
    }
}

fn entry(pod: &Pod) -> Option<(String, Option<PodFacts>)> {
    let key = format!("{}/{}", pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
    Some((key, PodFacts::of(pod)))
}

fn taken<T>(what: &str, event: watcher::Result<Event<T>>) -> Option<Event<T>> {
    event
        .inspect_err(|error| {
            tracing::warn!(what, %error, "a watch of burst failed and restarts; apply \
        deploy/agent/burst.yaml where it is forbidden")
        })
        .ok()
}
