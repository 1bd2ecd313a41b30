//! Follows the leases' objects on the donors' API servers and records them in the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use comity_testkit::ControlPlane;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinHandle;

use super::ledger::Ledger;

/// The label of everything that is made for a lease.
const LEASE_LABEL: &str = "comity.dev/lease";
/// The resource as which Kubernetes counts GPUs here.
const GPU: &str = "nvidia.com/gpu";

/// The shared ledger.
pub(super) type SharedLedger = Arc<Mutex<Ledger>>;

/// Calls `write` with the ledger.
pub(super) fn with<T>(ledger: &SharedLedger, write: impl FnOnce(&mut Ledger) -> T) -> T {
    write(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Follows one donor until dropped.
pub(super) struct Grants(Vec<JoinHandle<()>>);

impl Grants {
    /// Begins to follow a donor's namespaces and quotas of leases.
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
        let (here, there) = (ledger.clone(), ledger.clone());
        let (first, second) = (donor.clone(), donor);
        Ok(Self(vec![
            tokio::spawn(replay(
                namespaces,
                |_| 0,
                move |now| {
                    with(&here, |ledger| ledger.namespaces_are(&first, now.keys().cloned().collect()));
                },
            )),
            tokio::spawn(replay(quotas, granted, move |now| {
                with(&there, |ledger| ledger.quotas_are(&second, now.clone()));
            })),
        ]))
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Reports the objects by lease after every change, in the API server's order.
async fn replay<K: kube::Resource>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    amount: impl Fn(&K) -> u64,
    mut tell: impl FnMut(&BTreeMap<String, u64>),
) {
    let lease = |object: &K| object.labels().get(LEASE_LABEL).cloned().unwrap_or_default();
    let (mut now, mut listed) = (BTreeMap::new(), BTreeMap::new());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => drop(now.insert(lease(&object), amount(&object))),
            Ok(Event::Delete(object)) => drop(now.remove(&lease(&object))),
            Ok(Event::Init) => {
                listed = BTreeMap::new();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(lease(&object), amount(&object));
                continue;
            }
            Ok(Event::InitDone) => now = std::mem::take(&mut listed),
            // The API server is down: it is one of the faults.
            Err(_) => continue,
        }
        tell(&now);
    }
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
            "metadata": { "name": "gpus", "labels": { LEASE_LABEL: lease } },
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
        replay(futures::stream::iter(events), granted, |now| told.push(now.clone().into_iter().collect::<Vec<_>>()))
            .await;
        let of = |lease: &str, gpus| (lease.to_owned(), gpus);
        let first = vec![of("lease-1", 2)];
        let both = vec![of("lease-1", 2), of("lease-2", 1)];
        assert_eq!(told, [first, both, vec![of("lease-2", 1)], vec![of("lease-3", 4)]]);
    }
}
