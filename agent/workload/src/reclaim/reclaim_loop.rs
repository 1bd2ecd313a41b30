//! The reclaim loop: takes a snapshot, plans, and writes notices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_state::record::Records;
use comity_runtime::Clock;
use comity_types::{Delivery, LeaseId, LeaseState};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_stream::StreamMap;
use tokio_util::sync::CancellationToken;

use super::bound_pod::BoundPod;
use super::notice_plan::{Notice, ReclaimPlan, plan};
use super::notify::notify;
use super::reclaim_snapshot::{LeaseView, ReclaimNotice, ReclaimSnapshot};
use super::saved::Saved;
use crate::burst::pod_client::{Outcome, PodClient};

/// Concurrent calls to the API server.
const CONCURRENT_NOTICES: usize = 16;
/// How long a written notice counts before a watch shows it.
const NOTICE_ASSUMED_MS: u64 = 5_000;
/// Pause after a failure.
const NOTICE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest pause; every relevant change wakes the loop.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Dependencies of the loop.
pub struct ReclaimContext {
    /// This cluster's id.
    pub cluster: String,
    /// Its API server.
    pub kubernetes: KubernetesApi,
    /// Desired state from the broker.
    pub desired: watch::Receiver<Update>,
    /// The agent's records: they name the virtual node of each lease.
    pub records: watch::Receiver<Arc<Records>>,
    /// Receives the leases whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Runs until told to stop.
pub async fn run(context: ReclaimContext, stop: CancellationToken) {
    ReclaimLoop::new(context).run(stop).await;
}

type PodWatch = BoxStream<'static, watcher::Result<Event<Pod>>>;

/// A pod with a notice that no watch has shown yet.
struct AssumedNotice {
    before: BoundPod,
    after: BoundPod,
    until_ms: u64,
}

struct ReclaimLoop {
    cluster: String,
    kubernetes: KubernetesApi,
    pod_client: PodClient,
    desired: watch::Receiver<Update>,
    records: watch::Receiver<Arc<Records>>,
    saved: watch::Sender<Saved>,
    clock: Arc<dyn Clock>,
    events: StreamMap<String, PodWatch>,
    /// Pods by node: of leases under reclaim, and of others until no pod carries a notice any more.
    pods: BTreeMap<String, WatchCache<BoundPod>>,
    assumed: BTreeMap<String, AssumedNotice>,
    /// By lease: start of the reclaim, and when this process first saw it.
    noticed: BTreeMap<LeaseId, (u64, u64)>,
    /// Leases that are not under reclaim, and whose pods carry no notice.
    clear: BTreeSet<LeaseId>,
}

impl ReclaimLoop {
    fn new(context: ReclaimContext) -> Self {
        Self {
            cluster: context.cluster,
            pod_client: PodClient::new(context.kubernetes.client()),
            kubernetes: context.kubernetes,
            desired: context.desired,
            records: context.records,
            saved: context.saved,
            clock: context.clock,
            events: StreamMap::new(),
            pods: BTreeMap::new(),
            assumed: BTreeMap::new(),
            noticed: BTreeMap::new(),
            clear: BTreeSet::new(),
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        loop {
            let sleep = self.turn().await;
            loop {
                let changed = tokio::select! {
                    () = stop.cancelled() => return,
                    Some((node, event)) = self.events.next(), if !self.events.is_empty() =>
                        self.handle_event(&node, event),
                    Ok(()) = self.desired.changed() => true,
                    Ok(()) = self.records.changed() => true,
                    () = self.clock.sleep(sleep) => true,
                };
                if changed {
                    break;
                }
            }
        }
    }

    fn handle_event(&mut self, node: &str, event: watcher::Result<Event<Pod>>) -> bool {
        match event {
            Ok(event) => {
                let key = |pod: &Pod| Some((pod.metadata.uid.clone()?, BoundPod::of(pod)));
                self.pods.get_mut(node).is_some_and(|mirror| mirror.take(event, key))
            }
            Err(error) => {
                tracing::debug!(node, %error, "the watch of a virtual node's pods broke; it restarts");
                false
            }
        }
    }

    /// One round; returns how long to sleep if nothing changes.
    async fn turn(&mut self) -> Duration {
        let now = self.clock.unix_ms();
        let Some(state) = self.desired.borrow_and_update().state.clone() else { return MAX_SLEEP };
        let records = Arc::clone(&self.records.borrow_and_update());
        let leases = leases(&state, &self.cluster, &records);
        self.follow(&leases, now);
        let snapshot = self.take_snapshot(leases, now);
        let ReclaimPlan { notices, saved, wake_at_ms } = plan(&snapshot);
        let notified: BTreeSet<&str> = snapshot
            .pods
            .iter()
            .filter(|pod| pod.is_notified() && !pod.is_finished)
            .map(|pod| pod.node.as_str())
            .collect();
        let clear = snapshot
            .leases
            .iter()
            .filter(|(_, lease)| lease.reclaim.is_none() && !notified.contains(lease.node.as_str()));
        self.clear.extend(clear.map(|(id, _)| *id));
        self.saved.send_if_modified(|known| std::mem::replace(&mut known.by_pods, saved.clone()) != saved);
        let is_fine = self.write_notices(&snapshot, notices, now).await;
        let due = wake_at_ms.map(|at| Duration::from_millis(at.saturating_sub(now).max(1)));
        due.into_iter().chain((!is_fine).then_some(NOTICE_RETRY_INTERVAL)).min().unwrap_or(MAX_SLEEP)
    }

    /// Watches pods of exactly the nodes that may need notices.
    fn follow(&mut self, leases: &BTreeMap<LeaseId, LeaseView>, now: u64) {
        self.clear.retain(|id| leases.get(id).is_some_and(|lease| lease.reclaim.is_none()));
        self.noticed.retain(|id, (since, _)| {
            leases.get(id).and_then(|lease| lease.reclaim.as_ref()).is_some_and(|it| it.since_ms == *since)
        });
        for (id, reclaim) in leases.iter().filter_map(|(id, lease)| Some((id, lease.reclaim.as_ref()?))) {
            self.noticed.entry(*id).or_insert((reclaim.since_ms, now));
        }
        let wanted: BTreeSet<&String> =
            leases.iter().filter(|(id, _)| !self.clear.contains(*id)).map(|(_, lease)| &lease.node).collect();
        self.pods.retain(|node, _| wanted.contains(node));
        let gone: Vec<String> = self.events.keys().filter(|node| !wanted.contains(node)).cloned().collect();
        for node in gone {
            self.events.remove(&node);
        }
        for node in wanted {
            if !self.pods.contains_key(node) {
                let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
                let events = watcher::watcher(Api::<Pod>::all(self.kubernetes.client()), config);
                self.events.insert(node.clone(), events.default_backoff().boxed());
                self.pods.insert(node.clone(), WatchCache::default());
            }
        }
    }

    fn take_snapshot(&mut self, leases: BTreeMap<LeaseId, LeaseView>, now: u64) -> ReclaimSnapshot {
        let mut pods: BTreeMap<String, BoundPod> = self
            .pods
            .values()
            .filter(|mirror| mirror.is_complete())
            .flat_map(WatchCache::facts)
            .map(|pod| (pod.pod.uid.clone(), pod.clone()))
            .collect();
        self.assumed.retain(|uid, assumed| {
            let still = pods.get(uid).is_some_and(|current| *current == assumed.before) && assumed.until_ms > now;
            if let (true, Some(current)) = (still, pods.get_mut(uid)) {
                *current = assumed.after.clone();
            }
            still
        });
        let seen = |lease: &LeaseView| self.pods.get(&lease.node).is_some_and(WatchCache::is_complete);
        let leases = leases
            .into_iter()
            .filter(|(_, lease)| seen(lease))
            .map(|(id, lease)| {
                let noticed_ms = self.noticed.get(&id).map_or(0, |(_, noticed)| *noticed);
                (id, LeaseView { noticed_ms, ..lease })
            })
            .collect();
        ReclaimSnapshot { now_ms: now, leases, pods: pods.into_values().collect() }
    }

    /// Writes notices; false if any failed.
    async fn write_notices(&mut self, snapshot: &ReclaimSnapshot, notices: Vec<Notice>, now: u64) -> bool {
        let pod_client = &self.pod_client;
        let given = notices.into_iter().map(|notice| async move { (notify(pod_client, &notice).await, notice) });
        let given: Vec<(Outcome, Notice)> =
            futures::stream::iter(given).buffer_unordered(CONCURRENT_NOTICES).collect().await;
        let mut is_fine = true;
        for (outcome, notice) in given {
            let (namespace, pod) = (&notice.pod.namespace, &notice.pod.name);
            match outcome {
                Outcome::Failed(reason) => {
                    is_fine = false;
                    tracing::warn!(namespace, pod, reason, "a pod is not notified of a reclaim yet");
                }
                Outcome::Outdated => is_fine = false,
                Outcome::Done | Outcome::Changed(_) => {
                    tracing::info!(namespace, pod, text = notice.note.text, "notice written");
                    self.assume(snapshot, &notice, now);
                }
            }
        }
        is_fine
    }

    fn assume(&mut self, snapshot: &ReclaimSnapshot, notice: &Notice, now: u64) {
        let Some(seen) = snapshot.pods.iter().find(|pod| pod.pod.uid == notice.pod.uid) else { return };
        let (notified_deadline, notified_reason) = notice.marks.clone().unzip();
        let after = BoundPod { notified_deadline, notified_reason, is_saved: false, ..seen.clone() };
        let uid = notice.pod.uid.clone();
        // The watch still shows the state from before the first assumption.
        let before = self.assumed.remove(&uid).map_or_else(|| seen.clone(), |earlier| earlier.before);
        self.assumed.insert(uid, AssumedNotice { before, after, until_ms: now.saturating_add(NOTICE_ASSUMED_MS) });
    }
}

/// Own leases by virtual node that are in force.
fn leases(state: &DesiredState, cluster: &str, records: &Records) -> BTreeMap<LeaseId, LeaseView> {
    let is_in_force = |lease: &&Lease| {
        lease.origin.as_str() == cluster
            && lease.delivery == Delivery::VirtualNode
            && lease.state.is_some_and(LeaseState::is_in_force)
    };
    let snapshot = |lease: &Lease| {
        let node = records.origins.get(&lease.id).map_or_else(|| lease.id.to_string(), |record| record.node());
        (lease.id, LeaseView { node, reclaim: ReclaimNotice::of(lease), noticed_ms: 0 })
    };
    state.leases.iter().filter(is_in_force).map(snapshot).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::lease::reclaim::{Reclaim, ReclaimReason};
    use comity_agent_state::record::OriginRecord;
    use comity_types::{PeeringId, RequestId};

    use super::*;

    #[test]
    fn own_virtual_nodes_in_force_are_looked_after() {
        let lease = |id: u64, origin: &str, delivery: Delivery, state: LeaseState| Lease {
            delivery,
            state: Some(state),
            message: "reclaimed: the donor needs it for local work".to_owned(),
            reclaim: Some(Reclaim {
                reason: Some(ReclaimReason::LocalNeed),
                since_ms: 1_000,
                deadline_ms: 1_772_366_400_000,
            }),
            ..Lease::new(LeaseId(id), RequestId(id), origin.parse().unwrap(), PeeringId(1))
        };
        let mut records = Records::default();
        let record = OriginRecord::new(LeaseId(1), 1, Delivery::VirtualNode);
        let record = OriginRecord { node: Some("lease-0".to_owned()), ..record };
        records.origins.insert(LeaseId(1), Arc::new(record));
        let all = vec![
            lease(1, "here", Delivery::VirtualNode, LeaseState::Reclaiming),
            lease(2, "there", Delivery::VirtualNode, LeaseState::Reclaiming),
            lease(3, "here", Delivery::Namespace, LeaseState::Reclaiming),
            lease(4, "here", Delivery::VirtualNode, LeaseState::Ending),
            lease(5, "here", Delivery::VirtualNode, LeaseState::Suspect),
        ];
        let found = leases(&DesiredState { leases: all, ..DesiredState::default() }, "here", &records);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&LeaseId(1), &LeaseId(5)]);
        let first = &found[&LeaseId(1)];
        assert_eq!(first.node, "lease-0");
        let reclaim = first.reclaim.as_ref().unwrap();
        assert_eq!((reclaim.at.as_str(), reclaim.reason.as_str()), ("2026-03-01T12:00:00Z", "local-need"));
        assert!(found[&LeaseId(5)].reclaim.is_some(), "a silent side is being reclaimed all the same");
    }
}
