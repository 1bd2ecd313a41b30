//! Watches the inventory of a Kubernetes cluster: nodes, pods, namespaces of leases, and NUMA topology objects.
//!
//! Only the needed facts of each object are kept, and finished pods are not sent. A failed watch restarts with backoff;
//! the last inventory stays published meanwhile: a silent API server must not look like an empty cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};
use comity_agent_model::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::nodes::Nodes;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::time::Instant;

use super::gpu_pool::NotOffered;
use super::hami_handshakes::HamiHandshakes;
use super::inventory::build_nodes;
use super::node_facts::NodeFacts;
use super::partial_object::Partial;
use super::pod_facts::{Names, PodFacts};
use super::topology_watch::{self, Topologies};
use super::{Inventory, InventorySettings};

/// How long changes are gathered: a rollout changes many pods at once.
const DEBOUNCE: Duration = Duration::from_millis(200);

type Watch<T> = watcher::Result<Event<T>>;

/// Watches the cluster. Must be called within a tokio runtime; ends when the inventory is dropped.
pub fn observe(api: &KubernetesApi, settings: InventorySettings) -> Inventory {
    let (publish, nodes) = watch::channel(None);
    let client = api.client();
    let streams = Streams {
        nodes: watcher::watcher(Api::<Partial<Node>>::all(client.clone()), watcher::Config::default())
            .default_backoff()
            .boxed(),
        pods: watcher::watcher(
            Api::<Partial<Pod>>::all(client.clone()),
            watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed"),
        )
        .default_backoff()
        .boxed(),
        namespaces: watcher::watcher(
            Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
            watcher::Config::default().labels(LEASE_LABEL),
        )
        .default_backoff()
        .boxed(),
        guests: watcher::watcher(
            Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
            watcher::Config::default().labels(&format!("{REMOTE_CLUSTER_LABEL},!{TENANT_NAMESPACE_LABEL}")),
        )
        .default_backoff()
        .boxed(),
    };
    let (publish_topologies, topologies) = watch::channel(None);
    let task = async move {
        tokio::select! {
            () = follow(streams, topologies, settings, publish) => {}
            // Ends only with its receiver.
            () = topology_watch::follow(client, publish_topologies) => {}
        }
    };
    Inventory::new(nodes, tokio::spawn(task))
}

struct Streams<N, P, S> {
    nodes: N,
    pods: P,
    namespaces: S,
    guests: S,
}

#[derive(Default)]
struct ObservedCluster {
    nodes: WatchCache<NodeFacts>,
    pods: WatchCache<PodFacts>,
    names: Names,
    /// Namespaces of leases.
    namespaces: WatchCache<String>,
    /// Namespaces that Liqo made for pods of other clusters; these pods belong to leases too.
    guests: WatchCache<String>,
    topologies: Topologies,
    handshakes: HamiHandshakes,
}

async fn follow<N, P, S>(
    mut streams: Streams<N, P, S>,
    mut topologies: watch::Receiver<Topologies>,
    settings: InventorySettings,
    publish: watch::Sender<Nodes>,
) where
    N: Stream<Item = Watch<Partial<Node>>> + Unpin,
    P: Stream<Item = Watch<Partial<Pod>>> + Unpin,
    S: Stream<Item = Watch<PartialObjectMeta<Namespace>>> + Unpin,
{
    let mut seen = ObservedCluster::default();
    let mut due: Option<Instant> = None;
    let mut logged = Vec::new();
    loop {
        // The branch is disabled without a deadline.
        let build_at = due.unwrap_or_else(Instant::now);
        let changed = tokio::select! {
            event = streams.nodes.next() => match event {
                Some(event) => taken("nodes", event).is_some_and(|event| seen.nodes.take(event, node_entry)),
                None => return,
            },
            event = streams.pods.next() => match event {
                Some(event) => taken("pods", event).is_some_and(|event| seen.take_pod(event)),
                None => return,
            },
            event = streams.namespaces.next() => match event {
                Some(event) => taken("namespaces", event).is_some_and(|event| seen.namespaces.take(event, namespace_entry)),
                None => return,
            },
            event = streams.guests.next() => match event {
                Some(event) => taken("guests", event).is_some_and(|event| seen.guests.take(event, guest_entry)),
                None => return,
            },
            Ok(()) = topologies.changed() => {
                seen.topologies.clone_from(&topologies.borrow_and_update());
                true
            }
            () = tokio::time::sleep_until(build_at), if due.is_some() => {
                seen.publish(&settings, &publish, &mut logged);
                due = seen.handshakes.next_late(Instant::now());
                false
            }
        };
        if changed && seen.is_complete() {
            let soon = Instant::now() + DEBOUNCE;
            due = Some(due.map_or(soon, |due| due.min(soon)));
        }
    }
}

fn taken<T>(what: &str, event: Watch<T>) -> Option<Event<T>> {
    event
        .inspect_err(|error| {
            tracing::warn!(what, %error, "a watch failed and restarts; the inventory may be \
        old until then")
        })
        .ok()
}

fn node_entry(Partial(node): &Partial<Node>) -> Option<(String, Option<NodeFacts>)> {
    Some((node.metadata.name.clone()?, NodeFacts::of(node)))
}

fn pod_entry(Partial(pod): &Partial<Pod>, names: &mut Names) -> Option<(String, Option<PodFacts>)> {
    let key = format!("{}/{}", pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
    Some((key, names.facts_of(pod)))
}

/// A namespace belongs to a lease if label and name agree: the label alone could hide local use.
fn namespace_entry(namespace: &PartialObjectMeta<Namespace>) -> Option<(String, Option<String>)> {
    let name = namespace.metadata.name.clone()?;
    let lease = namespace.metadata.labels.as_ref().and_then(|labels| labels.get(LEASE_LABEL));
    let is_ours = lease.and_then(|lease| lease.parse().ok()).is_some_and(|lease| namespace_name(lease) == name);
    Some((name.clone(), is_ours.then_some(name)))
}

fn guest_entry(namespace: &PartialObjectMeta<Namespace>) -> Option<(String, Option<String>)> {
    let name = namespace.metadata.name.clone()?;
    Some((name.clone(), Some(name)))
}

impl ObservedCluster {
    fn take_pod(&mut self, event: Event<Partial<Pod>>) -> bool {
        let names = &mut self.names;
        self.pods.take(event, |pod| pod_entry(pod, names))
    }

    fn is_complete(&self) -> bool {
        self.nodes.is_complete()
            && self.pods.is_complete()
            && self.namespaces.is_complete()
            && self.guests.is_complete()
            && self.topologies.is_some()
    }

    fn publish(&mut self, settings: &InventorySettings, publish: &watch::Sender<Nodes>, logged: &mut Vec<NotOffered>) {
        let lent: BTreeSet<String> = self.namespaces.facts().chain(self.guests.facts()).cloned().collect();
        let topologies = self.topologies.clone().unwrap_or_default();
        let now = Instant::now();
        self.handshakes.note(self.nodes.facts(), now);
        let nodes: Vec<_> = self.nodes.facts().map(|node| self.handshakes.judged(node, now)).collect();
        let built = build_nodes(nodes.iter().map(|node| &**node), self.pods.facts(), &lent, &topologies, settings);
        if built.not_offered != *logged {
            for left in &built.not_offered {
                tracing::warn!(
                    node = left.node,
                    resource = left.resource,
                    reason = left.reason,
                    "these devices are not offered"
                );
            }
            *logged = built.not_offered;
        }
        publish.send_if_modified(|current| {
            let differs = current.as_ref().is_none_or(|nodes| **nodes != built.nodes);
            if differs {
                *current = Some(Arc::new(built.nodes));
            }
            differs
        });
    }
}
