//! Follows the leases' objects on the donors' API servers and records them in the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_testkit::ControlPlane;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinHandle;

use super::ledger::{DonorNode, DonorPod, Ledger};

/// The resource as which Kubernetes counts GPUs here.
pub(super) const GPU: &str = "nvidia.com/gpu";
/// Before a lease's id: the resource of its nodes, and the one that counts its GPUs there.
pub(super) const OPEN_LEASE: &str = "lease.comity.dev/";
pub(super) const LEASED_GPUS: &str = "gpus.lease.comity.dev/";
/// How often over-committed nodes are looked at while nothing changes.
const NODE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shared ledger.
pub(super) type SharedLedger = Arc<Mutex<Ledger>>;

/// Calls `write` with the ledger.
pub(super) fn with<T>(ledger: &SharedLedger, write: impl FnOnce(&mut Ledger) -> T) -> T {
    write(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Follows one donor until dropped.
pub(super) struct Grants(Vec<JoinHandle<()>>);

impl Grants {
    /// Begins to follow a donor's nodes and pods, and the namespaces and quotas of leases.
    ///
    /// # Errors
    /// When its nodes cannot be read.
    pub(super) async fn follow(plane: &ControlPlane, ledger: &SharedLedger) -> Result<Self, kube::Error> {
        let donor = plane.name().to_owned();
        let nodes = Api::<Node>::all(plane.client()).list(&ListParams::default()).await?;
        let gpus = nodes.iter().filter_map(|node| number(node.status.as_ref()?.allocatable.as_ref()?, GPU)).sum();
        with(ledger, |ledger| ledger.donor_has(&donor, gpus));

        let leased = watcher::Config::default().labels(LEASE_LABEL);
        let namespaces = watcher(Api::<Namespace>::all(plane.client()), leased.clone()).default_backoff();
        let quotas = watcher(Api::<ResourceQuota>::all(plane.client()), leased).default_backoff();
        let (of_namespaces, of_quotas) = (Told::new(ledger, &donor), Told::new(ledger, &donor));
        let (of_nodes, of_pods) = (Told::new(ledger, &donor), Told::new(ledger, &donor));
        let checked = Told::new(ledger, &donor);
        let all_nodes = watcher(Api::<Node>::all(plane.client()), watcher::Config::default()).default_backoff();
        let all_pods = watcher(Api::<Pod>::all(plane.client()), watcher::Config::default()).default_backoff();
        Ok(Self(vec![
            tokio::spawn(replay(
                namespaces,
                |object| Some((lease_of(object), 0)),
                move |now| {
                    of_namespaces.tell(|ledger, donor, _| ledger.namespaces_are(donor, now.keys().cloned().collect()));
                },
            )),
            tokio::spawn(replay(
                quotas,
                |quota| Some((lease_of(quota), granted(quota))),
                move |now| {
                    of_quotas.tell(|ledger, donor, _| ledger.quotas_are(donor, now.clone()));
                },
            )),
            tokio::spawn(replay(
                all_nodes,
                |node| Some((node.name_any(), donor_node(node))),
                move |now| {
                    of_nodes.tell(|ledger, donor, at| ledger.nodes_are(donor, now.clone(), at));
                },
            )),
            tokio::spawn(replay(all_pods, bound_pod, move |now| {
                of_pods.tell(|ledger, donor, at| ledger.pods_are(donor, now.clone(), at));
            })),
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(NODE_CHECK_INTERVAL).await;
                    checked.tell(|ledger, donor, at| ledger.check_nodes(donor, at));
                }
            }),
        ]))
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Where observations of one donor go, with the time since the start.
struct Told {
    ledger: SharedLedger,
    donor: String,
    began: Instant,
}

impl Told {
    fn new(ledger: &SharedLedger, donor: &str) -> Self {
        Self { ledger: ledger.clone(), donor: donor.to_owned(), began: Instant::now() }
    }

    fn tell(&self, write: impl FnOnce(&mut Ledger, &str, Duration)) {
        with(&self.ledger, |ledger| write(ledger, &self.donor, self.began.elapsed()));
    }
}

/// Reports the reduced objects by key after every change, in the API server's order; `reduce` leaves some out.
async fn replay<K: kube::Resource, F>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    reduce: impl Fn(&K) -> Option<(String, F)>,
    mut tell: impl FnMut(&BTreeMap<String, F>),
) {
    let (mut now, mut listed) = (BTreeMap::new(), BTreeMap::new());
    // By the object's own name, so that its end is known when it is reduced to nothing.
    let name = |object: &K| (object.namespace(), object.name_any());
    let mut keys: BTreeMap<(Option<String>, String), String> = BTreeMap::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => match reduce(&object) {
                Some((key, fact)) => {
                    keys.insert(name(&object), key.clone());
                    now.insert(key, fact);
                }
                None => drop(keys.remove(&name(&object)).and_then(|key| now.remove(&key))),
            },
            Ok(Event::Delete(object)) => drop(keys.remove(&name(&object)).and_then(|key| now.remove(&key))),
            Ok(Event::Init) => {
                (listed, keys) = (BTreeMap::new(), BTreeMap::new());
                continue;
            }
            Ok(Event::InitApply(object)) => {
                if let Some((key, fact)) = reduce(&object) {
                    keys.insert(name(&object), key.clone());
                    listed.insert(key, fact);
                }
                continue;
            }
            Ok(Event::InitDone) => now = std::mem::take(&mut listed),
            // The API server is down: it is one of the faults.
            Err(_) => continue,
        }
        tell(&now);
    }
}

fn lease_of<K: kube::Resource>(object: &K) -> String {
    object.labels().get(LEASE_LABEL).cloned().unwrap_or_default()
}

fn donor_node(node: &Node) -> DonorNode {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let capacity = status.and_then(|status| status.capacity.as_ref());
    let open = capacity.into_iter().flatten().filter_map(|(name, _)| name.strip_prefix(OPEN_LEASE));
    let counted = |lease: &str| number(capacity?, &format!("{LEASED_GPUS}{lease}"));
    DonorNode {
        gpus: allocatable.and_then(|amounts| number(amounts, GPU)).unwrap_or(0),
        leases: open.map(|lease| (lease.to_owned(), counted(lease))).collect(),
    }
}

/// "namespace/name" of a pod that is bound and not finished.
fn bound_pod(pod: &Pod) -> Option<(String, DonorPod)> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let spec = pod.spec.as_ref().filter(|_| !matches!(phase, "Succeeded" | "Failed"))?;
    let namespace = pod.namespace().unwrap_or_default();
    let requests = spec.containers.iter().filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    let found = DonorPod {
        node: spec.node_name.clone().filter(|node| !node.is_empty())?,
        lease: namespace.strip_prefix("comity-").filter(|lease| lease.starts_with("lease-")).map(str::to_owned),
        gpus: requests.filter_map(|amounts| number(amounts, GPU)).sum(),
    };
    Some((format!("{namespace}/{}", pod.name_any()), found))
}

fn granted(quota: &ResourceQuota) -> u64 {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    hard.and_then(|hard| number(hard, &format!("requests.{GPU}"))).unwrap_or(0)
}

fn number(
    amounts: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    name: &str,
) -> Option<u64> {
    amounts.get(name)?.0.parse().ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn quota(lease: &str, gpus: u32) -> ResourceQuota {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "gpus", "namespace": format!("comity-{lease}"), "labels": { LEASE_LABEL: lease } },
            "spec": { "hard": { "requests.nvidia.com/gpu": gpus.to_string() } },
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn changes_come_in_order_and_a_new_list_replaces_the_old() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(quota("lease-1", 2))),
            Ok(Event::InitDone),
            Ok(Event::Apply(quota("lease-2", 1))),
            Ok(Event::Delete(quota("lease-1", 2))),
            Ok(Event::Init),
            Ok(Event::InitApply(quota("lease-3", 4))),
            Ok(Event::InitDone),
        ];
        let mut told = Vec::new();
        let reduce = |quota: &ResourceQuota| Some((lease_of(quota), granted(quota)));
        let tell = |now: &BTreeMap<String, u64>| told.push(now.clone().into_iter().collect::<Vec<_>>());
        replay(futures::stream::iter(events), reduce, tell).await;
        let of = |lease: &str, gpus| (lease.to_owned(), gpus);
        let first = vec![of("lease-1", 2)];
        let both = vec![of("lease-1", 2), of("lease-2", 1)];
        assert_eq!(told, [first, both, vec![of("lease-2", 1)], vec![of("lease-3", 4)]]);
    }
}
