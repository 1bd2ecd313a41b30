//! The loop: looks, plans, tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_proto::v1;
use comity_runtime::Clock;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_stream::StreamMap;
use tokio_util::sync::CancellationToken;

use super::hands::give;
use super::plan::{Notice, ReclaimPlan, plan};
use super::pod::PodFacts;
use super::saved::Saved;
use super::view::{LeaseView, ReclaimNotice, ReclaimView};
use crate::kubernetes::api::KubernetesApi;
use crate::kubernetes::mirror::Mirror;
use crate::model::desired::Update;
use crate::state::record::Records;
use crate::workload::burst::execute::{Hands, Outcome};

/// Calls to the API server at once.
const AT_ONCE: usize = 16;
/// How long what a pod was told counts though no watch has shown it.
const BELIEVED_FOR_MS: u64 = 5_000;
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Nothing is due by itself: everything that matters wakes the loop.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What the loop is given.
pub struct ReclaimContext {
    /// This cluster's id.
    pub cluster: String,
    /// Its API server.
    pub kubernetes: KubernetesApi,
    /// What the broker wants.
    pub desired: watch::Receiver<Update>,
    /// What this agent remembers: which virtual node stands for a lease.
    pub records: watch::Receiver<Arc<Records>>,
    /// Told of leases whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Runs until told to stop.
pub async fn run(context: ReclaimContext, stop: CancellationToken) {
    Shell::new(context).run(stop).await;
}

type Watch = BoxStream<'static, watcher::Result<Event<Pod>>>;

/// What a pod was told, until a watch shows it.
struct Believed {
    before: PodFacts,
    after: PodFacts,
    until_ms: u64,
}

struct Shell {
    cluster: String,
    kubernetes: KubernetesApi,
    hands: Hands,
    desired: watch::Receiver<Update>,
    records: watch::Receiver<Arc<Records>>,
    saved: watch::Sender<Saved>,
    clock: Arc<dyn Clock>,
    events: StreamMap<String, Watch>,
    /// Pods by node: of leases that are being reclaimed, and of others until it is sure that none says so any more.
    pods: BTreeMap<String, Mirror<PodFacts>>,
    believed: BTreeMap<String, Believed>,
    /// When notice was given and when that was first seen here, by lease.
    noticed: BTreeMap<String, (u64, u64)>,
    /// Leases of which no pod says that they are being reclaimed, and none is.
    clear: BTreeSet<String>,
}

impl Shell {
    fn new(context: ReclaimContext) -> Self {
        Self {
            cluster: context.cluster,
            hands: Hands::new(context.kubernetes.client()),
            kubernetes: context.kubernetes,
            desired: context.desired,
            records: context.records,
            saved: context.saved,
            clock: context.clock,
            events: StreamMap::new(),
            pods: BTreeMap::new(),
            believed: BTreeMap::new(),
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
                    Some((node, event)) = self.events.next(), if !self.events.is_empty() => self.take(&node, event),
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

    fn take(&mut self, node: &str, event: watcher::Result<Event<Pod>>) -> bool {
        match event {
            Ok(event) => {
                let key = |pod: &Pod| Some((pod.metadata.uid.clone()?, PodFacts::of(pod)));
                self.pods.get_mut(node).is_some_and(|mirror| mirror.take(event, key))
            }
            Err(error) => {
                tracing::debug!(node, %error, "the watch of a virtual node's pods broke; it begins again");
                false
            }
        }
    }

    /// Looks, plans and tells once; how long to sleep if nothing changes.
    async fn turn(&mut self) -> Duration {
        let now = self.clock.unix_ms();
        let Some(state) = self.desired.borrow_and_update().state.clone() else { return LONGEST_SLEEP };
        let records = Arc::clone(&self.records.borrow_and_update());
        let leases = leases(&state, &self.cluster, &records);
        self.follow(&leases, now);
        let view = self.look(leases, now);
        let ReclaimPlan { notices, saved, look_again_ms } = plan(&view);
        let told: BTreeSet<&str> =
            view.pods.iter().filter(|pod| pod.is_told() && !pod.is_finished).map(|pod| pod.node.as_str()).collect();
        let clear =
            view.leases.iter().filter(|(_, lease)| lease.reclaim.is_none() && !told.contains(lease.node.as_str()));
        self.clear.extend(clear.map(|(id, _)| id.clone()));
        self.saved.send_if_modified(|known| std::mem::replace(&mut known.by_pods, saved.clone()) != saved);
        let is_fine = self.tell(&view, notices, now).await;
        let due = look_again_ms.map(|at| Duration::from_millis(at.saturating_sub(now).max(1)));
        due.into_iter().chain((!is_fine).then_some(RETRY)).min().unwrap_or(LONGEST_SLEEP)
    }

    /// Watches the pods of the nodes that matter, and of no others.
    fn follow(&mut self, leases: &BTreeMap<String, LeaseView>, now: u64) {
        self.clear.retain(|id| leases.get(id).is_some_and(|lease| lease.reclaim.is_none()));
        self.noticed.retain(|id, (since, _)| {
            leases.get(id).and_then(|lease| lease.reclaim.as_ref()).is_some_and(|it| it.since_ms == *since)
        });
        for (id, reclaim) in leases.iter().filter_map(|(id, lease)| Some((id, lease.reclaim.as_ref()?))) {
            self.noticed.entry(id.clone()).or_insert((reclaim.since_ms, now));
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
                self.pods.insert(node.clone(), Mirror::default());
            }
        }
    }

    fn look(&mut self, leases: BTreeMap<String, LeaseView>, now: u64) -> ReclaimView {
        let mut pods: BTreeMap<String, PodFacts> = self
            .pods
            .values()
            .filter(|mirror| mirror.is_complete())
            .flat_map(Mirror::facts)
            .map(|pod| (pod.pod.uid.clone(), pod.clone()))
            .collect();
        self.believed.retain(|uid, believed| {
            let still = pods.get(uid).is_some_and(|current| *current == believed.before) && believed.until_ms > now;
            if let (true, Some(current)) = (still, pods.get_mut(uid)) {
                *current = believed.after.clone();
            }
            still
        });
        let seen = |lease: &LeaseView| self.pods.get(&lease.node).is_some_and(Mirror::is_complete);
        let leases = leases
            .into_iter()
            .filter(|(_, lease)| seen(lease))
            .map(|(id, lease)| {
                let noticed_ms = self.noticed.get(&id).map_or(0, |(_, noticed)| *noticed);
                (id, LeaseView { noticed_ms, ..lease })
            })
            .collect();
        ReclaimView { now_ms: now, leases, pods: pods.into_values().collect() }
    }

    /// Gives notices; whether all were given.
    async fn tell(&mut self, view: &ReclaimView, notices: Vec<Notice>, now: u64) -> bool {
        let hands = &self.hands;
        let given = notices.into_iter().map(|notice| async move { (give(hands, &notice).await, notice) });
        let given: Vec<(Outcome, Notice)> = futures::stream::iter(given).buffer_unordered(AT_ONCE).collect().await;
        let mut is_fine = true;
        for (outcome, notice) in given {
            let (namespace, pod) = (&notice.pod.namespace, &notice.pod.name);
            match outcome {
                Outcome::Failed(reason) => {
                    is_fine = false;
                    tracing::warn!(namespace, pod, reason, "a pod is not told of a reclaim yet");
                }
                Outcome::Outdated => is_fine = false,
                Outcome::Done | Outcome::Changed(_) => {
                    tracing::info!(namespace, pod, text = notice.note.text, "told");
                    self.believe(view, &notice, now);
                }
            }
        }
        is_fine
    }

    fn believe(&mut self, view: &ReclaimView, notice: &Notice, now: u64) {
        let Some(seen) = view.pods.iter().find(|pod| pod.pod.uid == notice.pod.uid) else { return };
        let (told_at, told_reason) = notice.marks.clone().unzip();
        let after = PodFacts { told_at, told_reason, is_saved: false, ..seen.clone() };
        let uid = notice.pod.uid.clone();
        // What was planned by a belief still stands for what the watch showed before it.
        let before = self.believed.remove(&uid).map_or_else(|| seen.clone(), |earlier| earlier.before);
        self.believed.insert(uid, Believed { before, after, until_ms: now.saturating_add(BELIEVED_FOR_MS) });
    }
}

/// Own leases by virtual node that are in force.
fn leases(state: &v1::DesiredState, cluster: &str, records: &Records) -> BTreeMap<String, LeaseView> {
    let is_in_force = |lease: &&v1::Lease| {
        lease.origin == cluster
            && lease.delivery() == v1::Delivery::VirtualNode
            && matches!(lease.state(), v1::LeaseState::Active | v1::LeaseState::Suspect | v1::LeaseState::Reclaiming)
    };
    let view = |lease: &v1::Lease| {
        let node = records.origins.get(&lease.id).map_or(lease.id.as_str(), |record| record.node()).to_owned();
        (lease.id.clone(), LeaseView { node, reclaim: ReclaimNotice::of(lease), noticed_ms: 0 })
    };
    state.leases.iter().filter(is_in_force).map(view).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use v1::{Delivery, LeaseState};

    use super::*;
    use crate::delivery::DeliveryKind;
    use crate::state::record::OriginRecord;

    #[test]
    fn own_virtual_nodes_in_force_are_looked_after() {
        let lease = |id: &str, origin: &str, delivery: Delivery, state: LeaseState| v1::Lease {
            id: id.to_owned(),
            origin: origin.to_owned(),
            delivery: delivery.into(),
            state: state.into(),
            message: "reclaimed: the donor needs it for local work".to_owned(),
            reclaim: Some(v1::Reclaim {
                reason: v1::ReclaimReason::LocalNeed.into(),
                since_ms: 1_000,
                deadline_ms: 1_772_366_400_000,
                ..v1::Reclaim::default()
            }),
            ..v1::Lease::default()
        };
        let mut records = Records::default();
        let record = OriginRecord::new("lease-1", 1, DeliveryKind::VirtualNode);
        let record = OriginRecord { node: Some("lease-0".to_owned()), ..record };
        records.origins.insert("lease-1".to_owned(), Arc::new(record));
        let all = vec![
            lease("lease-1", "here", Delivery::VirtualNode, LeaseState::Reclaiming),
            lease("lease-2", "there", Delivery::VirtualNode, LeaseState::Reclaiming),
            lease("lease-3", "here", Delivery::Namespace, LeaseState::Reclaiming),
            lease("lease-4", "here", Delivery::VirtualNode, LeaseState::Ending),
            lease("lease-5", "here", Delivery::VirtualNode, LeaseState::Suspect),
        ];
        let found = leases(&v1::DesiredState { leases: all, ..v1::DesiredState::default() }, "here", &records);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["lease-1", "lease-5"]);
        let first = &found["lease-1"];
        assert_eq!(first.node, "lease-0");
        let reclaim = first.reclaim.as_ref().unwrap();
        assert_eq!((reclaim.at.as_str(), reclaim.reason.as_str()), ("2026-03-01T12:00:00Z", "local-need"));
        assert!(found["lease-5"].reclaim.is_some(), "a silent side is being reclaimed all the same");
    }
}
