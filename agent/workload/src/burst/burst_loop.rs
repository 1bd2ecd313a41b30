//! The burst loop: takes a snapshot, plans, and executes the actions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_model::desired::Update;
use comity_agent_model::node_service::NodeService;
use comity_agent_model::nodes::Nodes;
use comity_agent_state::record::Records;
use comity_runtime::Clock;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster_watch::ClusterWatch;
use super::facts::pod::PodFacts;
use super::facts::requested_stores::RequestedStores;
use super::plan::{BurstAction, REPEAT_NOTE_MS, plan};
use super::pod_client::{Outcome, PodClient, pod_of};
use super::requests::Requests;
use super::settings::BurstSettings;
use super::slots;
use super::snapshot::{BurstSnapshot, EndedRequest, LeaseStage, PodView, RequestFacts, WrittenNote};
use super::wait_reasons::WaitReasons;
use super::worker::Worker;
use crate::kueue::Provisioner;
use crate::reclaim::{self, ReclaimContext, Saved};

mod answers;
mod broker_facts;

/// Concurrent calls to the API server.
const CONCURRENT_POD_CALLS: usize = 16;
/// How often own requests are listed: while pods wait, and while none does.
const LIST_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How soon they are listed again while a lease has a request that no list had.
const LIST_UNKNOWN_AFTER: Duration = Duration::from_millis(250);
/// How long an own change counts before a watch shows it.
const CHANGE_ASSUMED_MS: u64 = 5_000;
/// Pause after a failure.
const RETRY_MS: u64 = 1_000;
/// How long a request that lost its lease to a reclaim, and its next lease, wait for pods: a Job makes them again after
/// ten seconds, later if they failed before.
const MOVES_FOR_MS: u64 = 60_000;
/// Newest events of one pod that are remembered.
const MAX_WRITTEN_NOTES: usize = 16;

/// Dependencies of burst.
pub struct BurstContext {
    /// This cluster's id.
    pub cluster: String,
    /// Its API server.
    pub kubernetes: KubernetesApi,
    /// The section `burst`, checked.
    pub settings: BurstSettings,
    /// The broker.
    pub requests: Arc<dyn Requests>,
    /// Desired state from the broker.
    pub desired: watch::Receiver<Update>,
    /// The agent's records.
    pub records: watch::Receiver<Arc<Records>>,
    /// The local inventory.
    pub nodes: watch::Receiver<Nodes>,
    /// Whether this cluster can borrow virtual nodes.
    pub service: watch::Receiver<NodeService>,
    /// Receives the checkpoint stores that requests name, for the admission webhook.
    pub stores: watch::Sender<RequestedStores>,
    /// Receives leases under reclaim whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Runs burst, the custom resource controller and the reclaim loop until stopped. Leaves their objects in
/// the cluster.
pub async fn run(context: BurstContext, stop: CancellationToken) {
    let custom = crate::crd::Controller {
        cluster: context.cluster.clone(),
        client: context.kubernetes.client(),
        requests: Arc::clone(&context.requests),
        desired: context.desired.clone(),
        service: context.service.clone(),
        clock: Arc::clone(&context.clock),
        default_class: context.settings.default_class.clone(),
        default_tenant: context.settings.default_tenant.clone(),
        saved: context.saved.clone(),
    };
    let provisioner = Provisioner {
        client: context.kubernetes.client(),
        settings: context.settings.clone(),
        clock: Arc::clone(&context.clock),
    };
    let provisions = context.settings.provisioning_requests;
    let reclaim = ReclaimContext {
        cluster: context.cluster.clone(),
        kubernetes: context.kubernetes.clone(),
        desired: context.desired.clone(),
        records: context.records.clone(),
        saved: context.saved.clone(),
        clock: Arc::clone(&context.clock),
    };
    tokio::join!(
        BurstLoop::new(&context).run(stop.clone()),
        custom.run(stop.clone()),
        run_if(provisions, provisioner.run(stop.clone())),
        reclaim::run(reclaim, stop.clone())
    );
}

async fn run_if(wanted: bool, task: impl Future<Output = ()>) {
    if wanted {
        task.await;
    }
}

/// A pod changed by an action that no watch has shown yet.
struct AssumedPod {
    before: PodFacts,
    after: PodFacts,
    until_ms: u64,
}

struct BurstLoop {
    cluster_id: String,
    settings: BurstSettings,
    clock: Arc<dyn Clock>,
    desired: watch::Receiver<Update>,
    records: watch::Receiver<Arc<Records>>,
    nodes: watch::Receiver<Nodes>,
    service: watch::Receiver<NodeService>,
    stores: watch::Sender<RequestedStores>,
    cluster: ClusterWatch,
    pod_client: PodClient,
    worker: Worker,
    requests: Option<BTreeMap<String, RequestFacts>>,
    /// When requests were submitted: a list that began before lacks them.
    submitted_ms: BTreeMap<String, u64>,
    ended: BTreeMap<String, EndedRequest>,
    refused: BTreeMap<String, (String, u64)>,
    renewals_refused: BTreeMap<String, (String, u64)>,
    /// Refused submissions, by key.
    failures: FailureLog,
    assumed: BTreeMap<String, AssumedPod>,
    seen_ms: BTreeMap<String, u64>,
    written_notes: BTreeMap<String, Vec<WrittenNote>>,
    wait_reasons: WaitReasons,
    expected: BTreeMap<String, Option<u32>>,
    short_since: BTreeMap<String, u64>,
    idle_since: BTreeMap<String, u64>,
    /// Requests whose lease was reclaimed, and until when they are kept for recreated pods.
    moving: BTreeMap<String, u64>,
    listed_ms: u64,
}

impl BurstLoop {
    fn new(context: &BurstContext) -> Self {
        let client = context.kubernetes.client();
        Self {
            cluster_id: context.cluster.clone(),
            settings: context.settings.clone(),
            clock: Arc::clone(&context.clock),
            desired: context.desired.clone(),
            records: context.records.clone(),
            nodes: context.nodes.clone(),
            service: context.service.clone(),
            stores: context.stores.clone(),
            cluster: ClusterWatch::start(client.clone(), context.settings.clone()),
            pod_client: PodClient::new(client),
            worker: Worker::new(Arc::clone(&context.requests), Arc::clone(&context.clock)),
            requests: None,
            submitted_ms: BTreeMap::new(),
            ended: BTreeMap::new(),
            refused: BTreeMap::new(),
            renewals_refused: BTreeMap::new(),
            failures: FailureLog::default(),
            assumed: BTreeMap::new(),
            seen_ms: BTreeMap::new(),
            written_notes: BTreeMap::new(),
            wait_reasons: WaitReasons::default(),
            expected: BTreeMap::new(),
            short_since: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            moving: BTreeMap::new(),
            listed_ms: 0,
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        let (mut dirty, mut wake) = (true, None::<u64>);
        loop {
            let now = self.clock.unix_ms();
            if dirty && self.cluster.is_complete() {
                wake = Some(self.turn(now).await);
                dirty = false;
            }
            let pause = Duration::from_millis(wake.unwrap_or(now + 500).saturating_sub(self.clock.unix_ms()));
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.cluster.changed() => dirty |= changed,
                answer = self.worker.answer() => { self.handle_answer(answer).await; dirty = true; }
                Ok(()) = self.desired.changed() => dirty = true,
                Ok(()) = self.nodes.changed() => dirty = true,
                () = self.clock.sleep(pause) => dirty = true,
            }
        }
    }

    /// One round; returns when the next is due at the latest, in milliseconds since 1970.
    async fn turn(&mut self, now: u64) -> u64 {
        let snapshot = self.take_snapshot(now);
        self.publish_stores(&snapshot);
        self.ask_broker(&snapshot);
        let actions = plan(&snapshot);
        let waits = snapshot.pods.iter().any(|pod| pod.facts.is_gated() || pod.facts.is_unschedulable)
            || !self.moving.is_empty();
        let every = if has_unknown_request(&snapshot) {
            LIST_UNKNOWN_AFTER
        } else if waits {
            LIST_EVERY.0
        } else {
            LIST_EVERY.1
        };
        let mut wake = self.listed_ms.saturating_add(u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
        if wake <= now {
            self.worker.list(now);
            wake = now + 500;
        }
        for action in &actions {
            match action {
                BurstAction::Submit(submission) => self.worker.submit(submission.clone()),
                BurstAction::Cancel { request } => self.worker.cancel(request.clone()),
                BurstAction::Renew { lease, expires_at_ms } => self.worker.renew(lease.clone(), *expires_at_ms),
                BurstAction::ReleaseLease { lease } => self.worker.release(lease.clone()),
                BurstAction::WakeAt { at_ms } => wake = wake.min((*at_ms).max(now + 1)),
                _ => {}
            }
        }
        if !self.act(&snapshot, actions).await {
            wake = wake.min(now + RETRY_MS);
        }
        wake
    }

    fn take_snapshot(&mut self, now: u64) -> BurstSnapshot {
        let mut facts = self.cluster.pods();
        self.assumed.retain(|uid, assumed| {
            let still = facts.get(uid).is_some_and(|current| *current == assumed.before) && assumed.until_ms > now;
            if let (true, Some(current)) = (still, facts.get_mut(uid)) {
                *current = assumed.after.clone();
            }
            still
        });
        self.seen_ms.retain(|uid, _| facts.contains_key(uid));
        self.written_notes.retain(|uid, _| facts.contains_key(uid));
        self.refused.retain(|_, (_, until)| *until > now);
        self.renewals_refused.retain(|_, (_, until)| *until > now);
        self.ended.retain(|id, _| facts.values().any(|pod| pod.request.as_ref() == Some(id)));
        self.expected.retain(|uid, _| facts.values().any(|pod| pod.owner.uid == *uid));
        let pods = facts.into_values().map(|facts| {
            let seen_ms = *self.seen_ms.entry(facts.pod.uid.clone()).or_insert(now);
            PodView { facts, seen_ms }
        });
        let pods = pods.collect();
        let update = self.desired.borrow().clone();
        let records = Arc::clone(&self.records.borrow());
        let mut snapshot = BurstSnapshot {
            now_ms: now,
            cluster: self.cluster_id.clone(),
            pods,
            namespaces: self.cluster.namespaces(),
            requests: self.requests.clone(),
            ended: self.ended.clone(),
            leases: update.state.as_deref().map(|state| broker_facts::leases(state, &self.cluster_id, &records)),
            local: broker_facts::local(
                self.nodes.borrow().as_deref().map_or(&[], Vec::as_slice),
                update.state.as_deref(),
                &self.cluster_id,
            ),
            in_flight: self.worker.in_flight(),
            refused: self.refused.clone(),
            renewals_refused: self.renewals_refused.clone(),
            written_notes: self.written_notes.clone(),
            cannot_borrow: self.service.borrow().borrows.clone().err(),
            expected: self.expected.iter().filter_map(|(uid, size)| Some((uid.clone(), (*size)?))).collect(),
            debounce_ms: self.settings.debounce_milliseconds,
            hold_ms: self.settings.hold_seconds.saturating_mul(1_000),
            least_cpu_milli: self.settings.cpu_milli_per_gpu,
            least_memory_mib: self.settings.memory_mib_per_gpu,
        };
        for lease in update.state.iter().flat_map(|state| &state.leases).filter(|lease| lease.reclaim.is_some()) {
            self.moving.insert(lease.request.to_string(), now.saturating_add(MOVES_FOR_MS));
        }
        self.moving.retain(|_, until| *until > now);
        for (id, request) in snapshot.requests.iter_mut().flatten() {
            request.kept_until_ms = self.moving.get(id).copied().unwrap_or(0);
        }
        self.wait_reasons
            .apply_to(snapshot.requests.iter_mut().flatten().filter(|(_, request)| request.is_queued), now);
        self.note_unused(&mut snapshot);
        snapshot
    }

    /// Tells the admission webhook which stores pods get.
    fn publish_stores(&self, snapshot: &BurstSnapshot) {
        let Some(stores) = snapshot.requested_stores() else { return };
        self.stores.send_if_modified(|held| {
            let is_new = *held != stores;
            *held = stores;
            is_new
        });
    }

    /// Sets since when requests and leases have unused capacity.
    fn note_unused(&mut self, snapshot: &mut BurstSnapshot) {
        let (short, idle) = slots::unused(snapshot);
        self.short_since.retain(|id, _| short.contains(id));
        self.idle_since.retain(|id, _| idle.contains(id));
        for (id, request) in snapshot.requests.iter_mut().flatten().filter(|(id, _)| short.contains(*id)) {
            request.short_since_ms = Some(*self.short_since.entry(id.clone()).or_insert(snapshot.now_ms));
        }
        for (id, lease) in snapshot.leases.iter_mut().flatten().filter(|(id, _)| idle.contains(*id)) {
            lease.idle_since_ms = Some(*self.idle_since.entry(id.clone()).or_insert(snapshot.now_ms));
        }
    }

    /// Looks up requests and Jobs that pods name and this process does not know.
    fn ask_broker(&mut self, snapshot: &BurstSnapshot) {
        for request in self.wait_reasons.due(snapshot.now_ms) {
            self.worker.explain(request);
        }
        for pod in snapshot.pods.iter().map(|pod| &pod.facts).filter(|pod| !pod.is_finished && pod.node.is_none()) {
            if let (Some(request), Some(known)) = (&pod.request, &self.requests)
                && !known.contains_key(request)
                && !self.ended.contains_key(request)
            {
                self.worker.get(request.clone());
            }
            let owner = &pod.owner;
            if owner.kind == "job" && owner.is_gang && !self.expected.contains_key(&owner.uid) {
                let (namespace, name) = (pod.pod.namespace.clone(), owner.name.clone());
                self.worker.job_size(&self.pod_client, namespace, name, owner.uid.clone());
            }
        }
    }

    /// Executes the actions on pods; false if any failed.
    async fn act(&mut self, snapshot: &BurstSnapshot, actions: Vec<BurstAction>) -> bool {
        let facts: BTreeMap<&str, &PodFacts> =
            snapshot.pods.iter().map(|pod| (pod.facts.pod.uid.as_str(), &pod.facts)).collect();
        let pod_client = &self.pod_client;
        let on_pods = actions.into_iter().filter_map(|action| {
            let facts = *facts.get(pod_of(&action)?.uid.as_str())?;
            Some(async move { (pod_client.act(&action, facts).await, action, facts) })
        });
        let mut results = futures::stream::iter(on_pods).buffer_unordered(CONCURRENT_POD_CALLS);
        let (mut is_fine, mut done) = (true, Vec::new());
        while let Some((outcome, action, facts)) = results.next().await {
            match outcome {
                Outcome::Failed(reason) => {
                    is_fine = false;
                    tracing::warn!(
                        namespace = facts.pod.namespace,
                        pod = facts.pod.name,
                        reason,
                        "an action on a pod failed and is retried"
                    );
                }
                Outcome::Outdated => is_fine = false,
                outcome => done.push((outcome, action, facts.clone())),
            }
        }
        drop(results);
        for (outcome, action, before) in done {
            self.remember(outcome, action, before, snapshot.now_ms);
        }
        is_fine
    }

    fn remember(&mut self, outcome: Outcome, action: BurstAction, before: PodFacts, now: u64) {
        if let BurstAction::WriteEvent { pod, note } = action {
            let notes = self.written_notes.entry(pod.uid).or_default();
            notes.retain(|written| written.note != note && now.saturating_sub(written.at_ms) < REPEAT_NOTE_MS);
            notes.truncate(MAX_WRITTEN_NOTES - 1);
            notes.insert(0, WrittenNote { note, at_ms: now });
            return;
        }
        tracing::info!(namespace = before.pod.namespace, pod = before.pod.name, ?action, "burst");
        if let Outcome::Changed(after) = outcome {
            self.assume(before, *after, now);
        }
    }

    fn assume(&mut self, before: PodFacts, after: PodFacts, now: u64) {
        let until_ms = now.saturating_add(CHANGE_ASSUMED_MS);
        let uid = before.pod.uid.clone();
        // The watch still shows the state from before the first assumption.
        let before = self.assumed.remove(&uid).map_or(before, |earlier| earlier.before);
        self.assumed.insert(uid, AssumedPod { before, after, until_ms });
    }
}

/// Whether people have requested a lease since the last list: its options are not known.
fn has_unknown_request(snapshot: &BurstSnapshot) -> bool {
    let Some(requests) = &snapshot.requests else { return false };
    let mut leases = snapshot.leases.iter().flatten();
    leases.any(|(_, lease)| lease.stage != LeaseStage::Ending && !requests.contains_key(&lease.request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::fixtures::{lease, request};

    #[test]
    fn a_lease_whose_request_no_list_had_is_noticed() {
        let of = |requests: Option<&[&str]>, stage| {
            let facts = |ids: &[&str]| ids.iter().map(|id| ((*id).to_owned(), request(1, ""))).collect();
            let leases = BTreeMap::from([("lease-1".to_owned(), lease("req-1", 1, stage))]);
            has_unknown_request(&BurstSnapshot {
                requests: requests.map(facts),
                leases: Some(leases),
                ..BurstSnapshot::default()
            })
        };
        assert!(of(Some(&["req-2"]), LeaseStage::Coming) && of(Some(&[]), LeaseStage::Active));
        assert!(!of(Some(&["req-1"]), LeaseStage::Active), "it is known");
        assert!(!of(Some(&[]), LeaseStage::Ending), "requests that ended are in no list");
        assert!(!of(None, LeaseStage::Active), "the first list comes anyway");
    }
}
