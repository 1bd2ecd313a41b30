//! The reconcile loop: it plans after each change and runs the steps concurrently, one at a time for each object.
//!
//! A failed step is retried with backoff; other objects do not wait for it. While the fence is closed, nothing is
//! planned and running steps are aborted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::desired::{Desired, Update};
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lent::LentLeases;
use comity_agent_model::local_policy::LocalPolicy;
use comity_agent_model::local_policy::borrowing_policy::BorrowingPolicy;
use comity_agent_model::nodes::Nodes;
use comity_agent_model::object_id::ObjectId;
use comity_runtime::Backoff;
use comity_types::LeaseId;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::metrics::Metrics;
use crate::observe::{LeaseDifferences, LocalReserve};
use crate::reconcile::fault::{CrashPoint, CrashTime};
use crate::reconcile::lent::LentBooks;
use crate::reconcile::live::Live;
use crate::reconcile::parts::{DESIRED_STATE_KEY, Parts};
use crate::reconcile::plan::{Snapshot, plan};
use crate::reconcile::steps::lease::{LeaseStep, RefuseLease, RemoveLease};
use crate::reconcile::steps::{Step, StepError};

/// Concurrent steps: enough for a burst of leases, few enough for a small API server.
const CONCURRENT_STEPS: usize = 16;
/// First and longest pause before a failed step is retried.
const STEP_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));
/// A plan is made at least this often: certificates, leases and pauses end without an event.
const MAX_PLAN_INTERVAL: Duration = Duration::from_secs(5);
/// How often the deliveries list their leases.
const LIST_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest pause between removals of unwanted objects.
const UNWANTED_REMOVAL_INTERVAL: Duration = Duration::from_secs(2);
/// A fresh desired state is requested at most this often.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Dependencies of the loop.
pub struct Executor {
    /// Dependencies of the steps.
    pub parts: Parts,
    /// Counters.
    pub metrics: Metrics,
    /// Where tests crash this process.
    pub crash_points: Arc<[CrashPoint]>,
    /// Desired states.
    pub desired: watch::Receiver<Update>,
    /// The cluster's own limits on lending.
    pub policy: LocalPolicy,
    /// Capacity of each node that is not lent.
    pub reserve: LocalReserve,
    /// The cluster's own limits on borrowing.
    pub borrowing: BorrowingPolicy,
    /// Outage grace in milliseconds, as the broker last said.
    pub outage_grace_ms: watch::Receiver<u64>,
    /// Asks the uplink for a fresh desired state.
    pub resync: Arc<Notify>,
    /// Receives the leases that this donor has in force.
    pub lent: watch::Sender<LentLeases>,
    /// Differences between the leases and the cluster.
    pub differences: watch::Receiver<Arc<LeaseDifferences>>,
    /// This cluster's nodes.
    pub nodes: watch::Receiver<Nodes>,
}

/// Backoff of a step after failures.
struct Pause {
    backoff: Backoff,
    until: Duration,
    error: String,
}

/// State of the loop: objects with a running step, paused steps, and the next times of periodic work.
#[derive(Default)]
struct Loop {
    busy: BTreeSet<String>,
    pauses: BTreeMap<String, Pause>,
    listed: BTreeSet<LeaseId>,
    next_list: Duration,
    next_removal: Duration,
    next_resync: Duration,
    lent: LentBooks,
}

type Ended = (Step, Result<(), StepError>);

impl Executor {
    /// Runs until stopped; running steps are then aborted, and a restart plans them again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut records = self.parts.store.subscribe();
        let mut service = self.parts.deliveries.node_service.clone();
        let mut networks = self.parts.networks.subscribe();
        let mut saved = self.parts.saved.subscribe();
        let mut uses = self.parts.uses.subscribe();
        let mut differences = self.differences.clone();
        let mut signed = self.parts.signed_policy.subscribe();
        let mut desired = Desired::remembered(self.remembered());
        let mut state = Loop::default();
        let mut tasks: JoinSet<Ended> = JoinSet::new();
        let fence = self.parts.fence.clone();
        loop {
            let round = self.round(&mut desired, &mut state, &mut tasks);
            let Some(sleep) = fence.while_open(round).await else {
                // The successor may run the same steps; this replica plans them again if it stays the active one.
                tasks.shutdown().await;
                state.busy.clear();
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = fence.opened() => continue,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = fence.shut() => {}
                Ok(()) = records.changed() => {}
                Ok(()) = self.desired.changed() => {}
                Ok(()) = service.changed() => {}
                Ok(()) = networks.changed() => {}
                Ok(()) = saved.changed() => {}
                Ok(()) = uses.changed() => {}
                Ok(()) = differences.changed() => {}
                Ok(()) = signed.changed() => {}
                Some(ended) = tasks.join_next() => self.note(ended, &mut state),
                () = self.parts.clock.sleep(sleep) => {}
            }
        }
        tasks.shutdown().await;
    }

    fn remembered(&self) -> DesiredState {
        let kept = self.parts.store.kept(DESIRED_STATE_KEY).ok().flatten().unwrap_or_default();
        // Any state from a live stream is newer, also if the broker group was created again.
        DesiredState { revision: 0, ..DesiredState::decode(&kept) }
    }

    /// Plans and starts steps. Returns how long to sleep if nothing happens.
    async fn round(&mut self, desired: &mut Desired, state: &mut Loop, tasks: &mut JoinSet<Ended>) -> Duration {
        let now = self.parts.clock.elapsed();
        self.list(state, now).await;
        let update = self.desired.borrow_and_update().clone();
        if desired.take(&update, &self.known_objects(state), now) {
            self.keep(desired).await;
            for (peering, reason) in self.parts.failures.note_handshakes(&desired.state().peerings) {
                tracing::warn!(%peering, reason, "the handshake with another cluster failed and is tried again");
            }
        }
        if desired.needs_resync(now) && now >= state.next_resync {
            state.next_resync = now + RESYNC_INTERVAL;
            self.resync.notify_one();
        }
        self.publish_lent(desired, state, now);
        let steps = self.plan(desired, state, now);
        self.count(desired);
        let mut sleep = MAX_PLAN_INTERVAL;
        for step in steps {
            let pause =
                state.pauses.get(&pause_name(&step)).map_or(Duration::ZERO, |pause| pause.until.saturating_sub(now));
            if !pause.is_zero() {
                sleep = sleep.min(pause);
            } else if !state.busy.contains(&step.object()) && tasks.len() < CONCURRENT_STEPS {
                self.start(step, state, tasks, now).await;
            }
        }
        sleep.max(Duration::from_millis(1))
    }

    fn publish_lent(&self, desired: &Desired, state: &mut Loop, now: Duration) {
        let records = self.parts.store.records();
        let lent = state.lent.at(desired.state(), &records, now);
        self.lent.send_if_modified(|known| {
            let differs = *known != lent;
            if differs {
                *known = lent;
            }
            differs
        });
    }

    fn plan(&self, desired: &Desired, state: &Loop, now: Duration) -> Vec<Step> {
        let records = self.parts.store.records();
        let mut live = self.live();
        if now >= state.next_removal && !desired.unwanted().is_empty() {
            // Without objects removed since the last desired state.
            live.unwanted = desired.unwanted().intersection(&self.known_objects(state)).copied().collect();
        }
        let service = self.parts.deliveries.node_service.borrow().clone();
        let nodes = self.nodes.borrow().clone();
        let signed_policy = self.parts.signed_policy.borrow().clone();
        plan(&Snapshot {
            cluster: &self.parts.member.cluster,
            desired: desired.state(),
            is_live: desired.is_live(),
            records: &records,
            live: &live,
            endpoints: &self.parts.member.endpoints,
            network: self.parts.member.network.as_ref(),
            service: &service,
            policy: &self.policy,
            reserve: self.reserve,
            require_vouchers: self.parts.member.pins.require_vouchers,
            borrowing: &self.borrowing,
            signed_policy: &signed_policy,
            nodes: nodes.as_ref().map(|nodes| nodes.as_slice()),
            now_ms: self.parts.clock.unix_ms(),
            outage_grace_ms: *self.outage_grace_ms.borrow(),
        })
    }

    /// The running parts of this process.
    fn live(&self) -> Live {
        let Parts { tunnels, connections, settling, networks, saved, uses, clock, .. } = &self.parts;
        let elapsed = clock.elapsed();
        Live {
            tunnels: tunnels.epochs(),
            accepted: connections.live(),
            settling: settling.at(elapsed),
            networks: networks.borrow().clone(),
            saved: saved.borrow().leases(),
            uses: uses.borrow().clone(),
            elapsed,
            unmarked: self.differences.borrow().unmarked.clone(),
            unwanted: BTreeSet::new(),
        }
    }

    async fn start(&self, step: Step, state: &mut Loop, tasks: &mut JoinSet<Ended>, now: Duration) {
        if step.removes_unwanted() {
            state.next_removal = now + UNWANTED_REMOVAL_INTERVAL;
            self.metrics.garbage.inc();
        }
        let work = StepRun {
            parts: self.parts.clone(),
            metrics: self.metrics.clone(),
            crash_points: Arc::clone(&self.crash_points),
        };
        if matches!(step, Step::Lease(LeaseStep::AdmitLease(_))) {
            // In order of fencing tokens, so one after another.
            let result = work.run(&step).await;
            return self.note(Ok((step, result)), state);
        }
        state.busy.insert(step.object());
        tasks.spawn(async move {
            let result = work.run(&step).await;
            (step, result)
        });
    }

    fn note(&self, ended: Result<Ended, tokio::task::JoinError>, state: &mut Loop) {
        let (step, result) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // Its object is unknown: clear all, and plan again.
                tracing::error!(%error, "a step panicked");
                state.busy.clear();
                return;
            }
        };
        state.busy.remove(&step.object());
        let now = self.parts.clock.elapsed();
        let name = pause_name(&step);
        let outcome = if result.is_ok() { "done" } else { "retry" };
        self.metrics.steps.with_label_values(&[step.name(), outcome]).inc();
        match result {
            Ok(()) => {
                match &step {
                    Step::Lease(LeaseStep::RemoveLease(RemoveLease { lease, .. })) => {
                        state.listed.remove(lease);
                    }
                    Step::Lease(LeaseStep::RefuseLease(RefuseLease { code, .. })) => {
                        self.metrics.refused_leases.with_label_values(&[*code]).inc();
                    }
                    _ => {}
                }
                state.pauses.remove(&name);
                state.pauses.retain(|_, pause| pause.until + STEP_BACKOFF.1 * 4 > now);
            }
            Err(error) => {
                let fresh = || Pause {
                    backoff: Backoff::new(STEP_BACKOFF.0, STEP_BACKOFF.1),
                    until: now,
                    error: String::new(),
                };
                let pause = state.pauses.entry(name).or_insert_with(fresh);
                let wait = pause.backoff.next_delay(self.parts.entropy.as_ref()).max(STEP_BACKOFF.0 / 4);
                pause.until = now + wait;
                pause.error = error.to_string();
                tracing::warn!(step = step.name(), object = step.object(), %error, again_in = ?wait, "a step failed and is retried");
            }
        }
        let failing = state.pauses.iter().map(|(name, pause)| (name.clone(), pause.error.clone()));
        self.parts.failures.set_steps(failing.collect());
    }

    /// All leases and peerings that this agent holds anything of.
    fn known_objects(&self, state: &Loop) -> BTreeSet<ObjectId> {
        let records = self.parts.store.records();
        let leases = records.donors.keys().chain(records.origins.keys()).chain(&state.listed);
        let peerings = records.peerings.keys().map(|(peering, _)| peering).chain(records.liqo.keys());
        let peerings = peerings.copied().chain(self.parts.tunnels.epochs().into_keys());
        leases.copied().map(ObjectId::Lease).chain(peerings.map(ObjectId::Peering)).collect()
    }

    async fn list(&self, state: &mut Loop, now: Duration) {
        if now < state.next_list {
            return;
        }
        state.next_list = now + LIST_INTERVAL;
        match self.delivered_leases().await {
            Ok(made) => state.listed = made,
            Err(error) => tracing::warn!(%error, "cannot list the objects of deliveries"),
        }
    }

    /// Leases that any delivery holds objects of.
    async fn delivered_leases(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let deliveries = &self.parts.deliveries;
        let (donor, origin) = tokio::join!(deliveries.donor.list(), deliveries.origin.list());
        let mut made = donor?;
        made.extend(origin?);
        if let Some(nodes) = &deliveries.virtual_nodes {
            let (donor, origin) = tokio::join!(nodes.donor.list(), nodes.origin.list());
            made.extend(donor?);
            made.extend(origin?);
        }
        Ok(made)
    }

    /// Stores the desired state for a restart without a broker.
    async fn keep(&self, desired: &Desired) {
        if let Err(error) = self.parts.store.keep_soon(DESIRED_STATE_KEY, desired.state().encoded.clone()).await {
            tracing::warn!(%error, "cannot keep the desired state");
        }
    }

    fn count(&self, desired: &Desired) {
        let metrics = &self.metrics;
        let records = self.parts.store.records();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.desired_revision.set(i64::try_from(desired.state().revision).unwrap_or(i64::MAX));
        metrics.outbox.set(gauge(records.outbox.len()));
        metrics.lent_milli.set(i64::try_from(records.lent_milli()).unwrap_or(i64::MAX));
        metrics.refused_keys.set(gauge(records.peers.values().filter(|peer| peer.refused.is_some()).count()));
        metrics.tunnels.set(gauge(self.parts.tunnels.epochs().len()));
        let lent = records.donors.values().filter(|record| !record.removed).count();
        metrics.leases.with_label_values(&["donor"]).set(gauge(lent));
        let borrowed = records.origins.values().filter(|record| !record.removed).count();
        metrics.leases.with_label_values(&["origin"]).set(gauge(borrowed));
    }
}

fn pause_name(step: &Step) -> String {
    format!("{}/{}", step.object(), step.name())
}

/// Input of one step's run.
struct StepRun {
    parts: Parts,
    metrics: Metrics,
    crash_points: Arc<[CrashPoint]>,
}

impl StepRun {
    async fn run(&self, step: &Step) -> Result<(), StepError> {
        let (name, limit) = (step.name(), step.deadline());
        let span = tracing::info_span!("step", step = name, object = step.object(), trace_id = tracing::field::Empty);
        // "version-trace id-span id-flags": the same id is in the brokers' logs.
        if let Some(trace_id) = step.traceparent().split('-').nth(1) {
            span.record("trace_id", trace_id);
            comity_runtime::telemetry::continue_trace(&span, step.traceparent());
        }
        let reached = |time| {
            for point in self.crash_points.iter() {
                point.reached(name, time);
            }
        };
        let timer = self.metrics.step_seconds.with_label_values(&[name]).start_timer();
        reached(CrashTime::Before);
        let work = tokio::time::timeout(limit, step.run(&self.parts)).instrument(span.clone());
        let ended = self.parts.fence.while_open(work).await;
        timer.observe_duration();
        let result = ended.map_or(Err(StepError::Fenced), |work| work.unwrap_or(Err(StepError::Deadline(limit))));
        if result.is_ok() {
            reached(CrashTime::After);
            span.in_scope(|| tracing::info!(step = name, object = step.object(), "done"));
        }
        result
    }
}
