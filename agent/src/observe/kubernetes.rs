//! Watches the inventory of a Kubernetes cluster: nodes, pods, namespaces of leases, and NUMA topology objects.
//!
//! Only the needed facts of each object are kept, and finished pods are not sent. A failed watch restarts with backoff;
//! the last inventory stays published meanwhile: a silent API server must not look like an empty cluster.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};
use comity_agent_model::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::lent::LentLeases;
use comity_agent_model::nodes::Nodes;
use comity_types::LeaseId;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::time::Instant;

use super::gpu_pool::NotOffered;
use super::inventory::build_nodes;
use super::lent_pods::Guests;
use super::node_facts::NodeFacts;
use super::partial_object::Partial;
use super::pod_facts::{Names, PodFacts};
use super::topology_watch::{self, Topologies};
use super::{Inventory, InventorySettings, LeaseDifferences};

/// How long changes are gathered: a rollout changes many pods at once.
const DEBOUNCE: Duration = Duration::from_millis(200);

type Watch<T> = watcher::Result<Event<T>>;

/// Watches the cluster. Nothing is published before the leases are known: their pods would look like local use. Must be
/// called within a tokio runtime; ends when the inventory is dropped.
pub fn observe(api: &KubernetesApi, settings: InventorySettings, mut leases: watch::Receiver<LentLeases>) -> Inventory {
    let (nodes_sender, nodes) = watch::channel(None);
    let (differences_sender, differences) = watch::channel(Arc::default());
    let publish = Publish { nodes: nodes_sender, differences: differences_sender };
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
            () = follow(streams, topologies, &mut leases, settings, publish) => {}
            // Ends only with its receiver.
            () = topology_watch::follow(client, publish_topologies) => {}
        }
    };
    Inventory::with_leases(nodes, differences, tokio::spawn(task))
}

/// Where the observer's results go.
struct Publish {
    nodes: watch::Sender<Nodes>,
    differences: watch::Sender<Arc<LeaseDifferences>>,
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
    namespaces: WatchCache<(String, LeaseId)>,
    /// Namespaces that Liqo made for pods of other clusters; these pods belong to leases too.
    guests: WatchCache<String>,
    leases: LentLeases,
    topologies: Topologies,
}

async fn follow<N, P, S>(
    mut streams: Streams<N, P, S>,
    mut topologies: watch::Receiver<Topologies>,
    leases: &mut watch::Receiver<LentLeases>,
    settings: InventorySettings,
    publish: Publish,
) where
    N: Stream<Item = Watch<Partial<Node>>> + Unpin,
    P: Stream<Item = Watch<Partial<Pod>>> + Unpin,
    S: Stream<Item = Watch<PartialObjectMeta<Namespace>>> + Unpin,
{
    let mut seen = ObservedCluster { leases: leases.borrow_and_update().clone(), ..ObservedCluster::default() };
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
            Ok(()) = leases.changed() => {
                seen.leases.clone_from(&leases.borrow_and_update());
                true
            }
            () = tokio::time::sleep_until(build_at), if due.is_some() => {
                due = None;
                seen.publish(&settings, &publish, &mut logged);
                false
            }
        };
        if changed && due.is_none() && seen.is_complete() {
            due = Some(Instant::now() + DEBOUNCE);
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
fn namespace_entry(namespace: &PartialObjectMeta<Namespace>) -> Option<(String, Option<(String, LeaseId)>)> {
    let name = namespace.metadata.name.clone()?;
    let lease = namespace.metadata.labels.as_ref().and_then(|labels| labels.get(LEASE_LABEL));
    let lease = lease.and_then(|lease| lease.parse().ok()).filter(|lease| namespace_name(*lease) == name);
    Some((name.clone(), lease.map(|lease| (name, lease))))
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
            && self.leases.is_some()
    }

    fn publish(&self, settings: &InventorySettings, publish: &Publish, logged: &mut Vec<NotOffered>) {
        let guests = Guests {
            lease_namespaces: self.namespaces.facts().cloned().collect(),
            liqo_namespaces: self.guests.facts().cloned().collect(),
            leases: self.leases.clone().unwrap_or_default(),
        };
        let topologies = self.topologies.clone().unwrap_or_default();
        let built = build_nodes(self.nodes.facts(), self.pods.facts(), &guests, &topologies, settings);
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
        let differences = LeaseDifferences { drifted: built.drifted, unmarked: built.unmarked, unused: built.unused };
        publish.differences.send_if_modified(|current| {
            let differs = **current != differences;
            if differs {
                *current = Arc::new(differences);
            }
            differs
        });
        publish.nodes.send_if_modified(|current| {
            let differs = current.as_ref().is_none_or(|nodes| **nodes != built.nodes);
            if differs {
                *current = Some(Arc::new(built.nodes));
            }
            differs
        });
    }
}
