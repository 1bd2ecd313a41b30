//! Watches the inventory of a Kubernetes cluster: nodes, pods, namespaces of leases, devices of DRA drivers, and NUMA
//! topology objects.
//!
//! Only the needed facts of each object are kept, and finished pods are not sent. A failed watch restarts with backoff;
//! the last inventory stays published meanwhile: a silent API server must not look like an empty cluster.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::gpu_resource::NVIDIA_MIG_PREFIX;
use comity_agent_kubernetes::pod_resources::PodName;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};
use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::lent::LentLeases;
use comity_agent_model::local_policy::ReclaimForPending;
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::nodes::Nodes;
use comity_runtime::Clock;
use comity_types::LeaseId;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::time::Instant;

use super::dra_watch::{self, Published};
use super::hami::hami_handshakes::HamiHandshakes;
use super::inventory::{BuiltInventory, build_nodes};
use super::lent_pods::Guests;
use super::lent_pods::held_devices::{self, FindPod};
use super::node_facts::NodeFacts;
use super::not_offered::NotOffered;
use super::partial_object::Partial;
use super::pending_pods::pending_pod::PendingPod;
use super::pending_pods::{ClusterFacts, PendingPods};
use super::pod_facts::{Names, PodFacts};
use super::topology_watch::{self, Topologies};
use super::{Inventory, InventorySettings, LeaseDifferences};
use crate::devices::{self, DevicePages, DeviceTable};
use crate::exporters::ExporterEndpoint;
use crate::mig::mig_keeper::MigView;
use crate::mig::mig_node::MigNode;

/// How long changes are gathered: a rollout changes many pods at once.
const DEBOUNCE: Duration = Duration::from_millis(200);

type Watch<T> = watcher::Result<Event<T>>;

/// Watches the cluster. Nothing is published before the leases are known: their pods would look like local use. Must be
/// called within a tokio runtime; ends when the inventory is dropped.
pub fn observe(api: &KubernetesApi, settings: InventorySettings, leases: watch::Receiver<LentLeases>) -> Inventory {
    observe_with(api, settings, leases, ObserverOptions::default())
}

/// Parts of an observer that not every donor has.
#[derive(Default)]
pub struct ObserverOptions {
    /// The layouts of MIG devices that the agent cuts; nothing is published before they are known.
    pub mig: Option<MigView>,
    /// Which pods that wait for leased GPUs count as local use; `None`: none.
    pub pending: Option<ReclaimForPending>,
    /// Device readers; `None`: only requests and claims count.
    pub readers: Option<DeviceReaders>,
}

/// The device readers of a cluster.
pub struct DeviceReaders {
    /// Their address.
    pub endpoint: ExporterEndpoint,
    /// File with the token that they ask for.
    pub token_file: PathBuf,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The same, with options.
pub fn observe_with(
    api: &KubernetesApi,
    settings: InventorySettings,
    leases: watch::Receiver<LentLeases>,
    ObserverOptions { mig, pending, readers }: ObserverOptions,
) -> Inventory {
    let (nodes_sender, nodes) = watch::channel(None);
    let (differences_sender, differences) = watch::channel(Arc::default());
    let (devices_sender, table) = watch::channel(Arc::default());
    let publish =
        Publish { nodes: nodes_sender, differences: differences_sender, devices: devices_sender, logged: Vec::new() };
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
    let (publish_devices, devices) = watch::channel(None);
    let (publish_pages, pages) = watch::channel(None);
    let read_pages = async move {
        match readers {
            Some(DeviceReaders { endpoint, token_file, clock }) => {
                devices::follow(endpoint, token_file, publish_pages, clock).await;
            }
            None => std::future::pending().await,
        }
    };
    let task = async move {
        tokio::select! {
            () = follow(
                streams,
                OtherFacts { topologies, devices, leases, pages },
                Output { settings, publish, mig, pending: pending.map(PendingPods::new) },
            ) => {}
            // These end only with their receivers.
            () = topology_watch::follow(client.clone(), publish_topologies) => {}
            () = dra_watch::follow(client, publish_devices) => {}
            () = read_pages => {}
        }
    };
    Inventory::with_leases(nodes, differences, tokio::spawn(task)).with_devices(table)
}

/// Where the observer's results go.
struct Publish {
    nodes: watch::Sender<Nodes>,
    differences: watch::Sender<Arc<LeaseDifferences>>,
    devices: watch::Sender<Arc<DeviceTable>>,
    /// What was logged last.
    logged: Vec<NotOffered>,
}

/// Where the inventory goes.
struct Output {
    settings: InventorySettings,
    publish: Publish,
    mig: Option<MigView>,
    pending: Option<PendingPods>,
}

struct Streams<N, P, S> {
    nodes: N,
    pods: P,
    namespaces: S,
    guests: S,
}

/// Facts from other watches: objects that not every cluster has, and the leases in force.
struct OtherFacts {
    topologies: watch::Receiver<Topologies>,
    devices: watch::Receiver<Published>,
    leases: watch::Receiver<LentLeases>,
    pages: watch::Receiver<Option<Arc<DevicePages>>>,
}

/// A pod that matters to the inventory.
#[derive(Debug, PartialEq)]
enum ObservedPod {
    OnNode(PodFacts),
    Pending(Box<PendingPod>),
}

#[derive(Default)]
struct ObservedCluster {
    nodes: WatchCache<NodeFacts>,
    pods: WatchCache<ObservedPod>,
    names: Names,
    /// Namespaces of leases.
    namespaces: WatchCache<(String, LeaseId)>,
    /// Namespaces that Liqo made for pods of other clusters; these pods belong to leases too.
    guests: WatchCache<String>,
    leases: LentLeases,
    topologies: Topologies,
    devices: Published,
    /// Pages of the device readers; `None` until the first round is read.
    pages: Option<Arc<DevicePages>>,
    handshakes: HamiHandshakes,
}

impl FindPod for ObservedCluster {
    fn find(&self, pod: &PodName) -> Option<&PodFacts> {
        match self.pods.get(&format!("{}/{}", pod.namespace, pod.name))? {
            ObservedPod::OnNode(pod) => Some(pod),
            ObservedPod::Pending(_) => None,
        }
    }
}

async fn follow<N, P, S>(
    mut streams: Streams<N, P, S>,
    OtherFacts { mut topologies, mut devices, mut leases, mut pages }: OtherFacts,
    mut output: Output,
) where
    N: Stream<Item = Watch<Partial<Node>>> + Unpin,
    P: Stream<Item = Watch<Partial<Pod>>> + Unpin,
    S: Stream<Item = Watch<PartialObjectMeta<Namespace>>> + Unpin,
{
    let mut seen = ObservedCluster { leases: leases.borrow_and_update().clone(), ..ObservedCluster::default() };
    let mut due: Option<Instant> = None;
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
            Ok(()) = devices.changed() => {
                seen.devices.clone_from(&devices.borrow_and_update());
                true
            }
            Ok(()) = pages.changed() => {
                seen.pages.clone_from(&pages.borrow_and_update());
                true
            }
            () = output.book_changed() => true,
            Ok(()) = leases.changed() => {
                seen.leases.clone_from(&leases.borrow_and_update());
                true
            }
            () = tokio::time::sleep_until(build_at), if due.is_some() => {
                output.publish(&mut seen);
                due = output.next_due(&seen, Instant::now());
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

fn pod_entry(Partial(pod): &Partial<Pod>, names: &mut Names) -> Option<(String, Option<ObservedPod>)> {
    let key = format!("{}/{}", pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
    let pending = || PendingPod::of(pod).map(|pod| ObservedPod::Pending(Box::new(pod)));
    Some((key, names.facts_of(pod).map(ObservedPod::OnNode).or_else(pending)))
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

    fn pods_on_nodes(&self) -> impl Iterator<Item = &PodFacts> + Clone {
        self.pods.facts().filter_map(|pod| match pod {
            ObservedPod::OnNode(pod) => Some(pod),
            ObservedPod::Pending(_) => None,
        })
    }

    fn pending_pods(&self) -> impl Iterator<Item = &PendingPod> {
        self.pods.facts().filter_map(|pod| match pod {
            ObservedPod::OnNode(_) => None,
            ObservedPod::Pending(pod) => Some(&**pod),
        })
    }

    fn is_complete(&self) -> bool {
        self.nodes.is_complete()
            && self.pods.is_complete()
            && self.namespaces.is_complete()
            && self.guests.is_complete()
            && self.topologies.is_some()
            && self.devices.is_some()
            && self.leases.is_some()
    }

    fn lent(&self) -> Guests {
        Guests {
            lease_namespaces: self.namespaces.facts().cloned().collect(),
            liqo_namespaces: self.guests.facts().cloned().collect(),
            leases: self.leases.clone().unwrap_or_default(),
        }
    }

    /// The nodes whose MIG devices the agent may cut, with the use of their resources.
    fn mig_nodes(&self, lent: &BTreeSet<String>, salt: &NodeSalt) -> Vec<MigNode> {
        let cut = self.nodes.facts().filter(|facts| facts.may_cut && !facts.is_virtual);
        let mut nodes: BTreeMap<&str, MigNode> =
            cut.map(|facts| (facts.name.as_str(), facts.mig_node(salt.node_id(&facts.name)))).collect();
        for pod in self.pods_on_nodes() {
            let Some(node) = nodes.get_mut(&*pod.node) else { continue };
            let used = if lent.contains(&*pod.namespace) { &mut node.lent } else { &mut node.local };
            for (name, amount) in pod.requests.iter().filter(|(name, _)| name.starts_with(NVIDIA_MIG_PREFIX)) {
                *used.entry(name.to_string()).or_default() += amount;
            }
        }
        nodes.into_values().collect()
    }
}

impl Output {
    /// Waits for new layouts; forever where the agent cuts none.
    async fn book_changed(&mut self) {
        let changed = match &mut self.mig {
            Some(mig) => mig.book.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }

    /// When the inventory may change without an event.
    fn next_due(&self, seen: &ObservedCluster, now: Instant) -> Option<Instant> {
        let counted = self.pending.as_ref().and_then(|pending| pending.next_due(now));
        seen.handshakes.next_late(now).into_iter().chain(counted).min()
    }

    fn publish(&mut self, seen: &mut ObservedCluster) {
        let (now, guests) = (Instant::now(), seen.lent());
        seen.handshakes.note(seen.nodes.facts(), now);
        let book = match &mut self.mig {
            Some(mig) => {
                let nodes = Some(Arc::new(seen.mig_nodes(&guests.namespaces(), &self.settings.salt)));
                mig.nodes.send_if_modified(|current| {
                    *current != nodes && {
                        current.clone_from(&nodes);
                        true
                    }
                });
                let book = mig.book.borrow_and_update();
                if !book.is_complete {
                    return;
                }
                Some(book)
            }
            None => None,
        };
        let devices = seen.devices.clone().unwrap_or_default();
        let pages = seen.pages.clone().unwrap_or_default();
        let table = held_devices::table(&pages, seen, &guests, &devices);
        let in_conflict: BTreeSet<String> = table.conflicts().into_iter().map(|conflict| conflict.node).collect();
        let node = |facts| {
            let mut judged = seen.handshakes.judged(facts, now);
            if let Some(layouts) = book.as_ref().and_then(|book| book.nodes.get(&facts.name)) {
                judged.to_mut().layouts = Some(layouts.clone());
            }
            if in_conflict.contains(&facts.name) {
                judged.to_mut().schedulable = false;
            }
            judged
        };
        let nodes: Vec<Cow<'_, NodeFacts>> = seen.nodes.facts().map(node).collect();
        let nodes: Vec<&NodeFacts> = nodes.iter().map(|node| &**node).collect();
        let topologies = seen.topologies.clone().unwrap_or_default();
        let waiting = self.pending.as_mut().map_or_else(Vec::new, |pending| {
            let cluster = ClusterFacts { nodes: &nodes, guests: &guests, salt: &self.settings.salt };
            pending.counted(seen.pending_pods(), seen.pods_on_nodes(), &cluster, now)
        });
        let pods: Vec<Cow<'_, PodFacts>> =
            seen.pods_on_nodes().chain(&waiting).map(|pod| held_devices::with_held(pod, &pages)).collect();
        let pods = pods.iter().map(|pod| &**pod);
        let built = build_nodes(nodes.iter().copied(), pods, &guests, &topologies, &devices, &self.settings);
        self.publish.send(built, table);
    }
}

impl Publish {
    fn send(&mut self, built: BuiltInventory, table: DeviceTable) {
        let BuiltInventory { nodes, not_offered, drifted, unmarked, unused } = built;
        if not_offered != self.logged {
            for left in &not_offered {
                tracing::warn!(
                    node = left.node,
                    resource = left.resource,
                    reason = left.reason,
                    "these devices are not offered"
                );
            }
            self.logged = not_offered;
        }
        let differences = LeaseDifferences { drifted, unmarked, unused: Some(unused) };
        self.differences.send_if_modified(|current| {
            let differs = **current != differences;
            if differs {
                *current = Arc::new(differences);
            }
            differs
        });
        self.devices.send_if_modified(|current| {
            let differs = **current != table;
            if differs {
                *current = Arc::new(table);
            }
            differs
        });
        self.nodes.send_if_modified(|current| {
            let differs = current.as_ref().is_none_or(|known| **known != nodes);
            if differs {
                *current = Some(Arc::new(nodes));
            }
            differs
        });
    }
}
