//! Carries `GpuRequest`s to the broker and back, and keeps `GpuLease`s.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_model::lease::target_namespace::NamespaceUse;
use comity_agent_model::node_service::NodeService;
use comity_proto::v1;
use comity_runtime::Clock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::EventType;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::controller_state::ControllerState;
use super::copies::Work;
use super::reconcile::{self, Defaults};
use super::remarks::Remark;
use super::write_error::WriteError;
use super::{DeliveryKind, FINALIZER, GpuLease, GpuRequest, camel};
use crate::burst::{CLASS, RequestError, Requests, TENANT_LABEL, wait_reasons};
use crate::reclaim::Saved;

/// How often the broker is polled: while a request waits, and while none does.
const ASK_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// A deleted object is kept this long while the broker does not answer. Afterwards it goes, and its orphaned request is
/// cancelled when the broker answers again.
const KEEP_DELETED: Duration = Duration::from_secs(600);
/// A request without an object is cancelled after this time.
const ORPHANED_AFTER_MS: u64 = 10_000;
/// A written `GpuLease` is compared again after this time: until then its watch may show the state before the write.
const SETTLES_AFTER: Duration = Duration::from_millis(500);
/// Pause before a refused submission is retried: the policy may change.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// Pause before an incomplete object is checked again: its namespace may change.
const INCOMPLETE_FOR: Duration = Duration::from_secs(30);
/// Objects processed concurrently.
const CONCURRENT_OBJECTS: usize = 8;

/// Dependencies of the controller.
pub struct Controller {
    /// This cluster.
    pub cluster: String,
    /// Its API server.
    pub client: kube::Client,
    /// The broker.
    pub requests: Arc<dyn Requests>,
    /// Desired states from the broker.
    pub desired: watch::Receiver<Update>,
    /// Whether this cluster can have virtual nodes.
    pub service: watch::Receiver<NodeService>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Class where neither object nor namespace names one.
    pub default_class: String,
    /// Tenant where the namespace names none.
    pub default_tenant: String,
    /// Receives leases whose `GpuLease` says that the work is saved.
    pub saved: watch::Sender<Saved>,
}

#[cfg(test)]
mod tests;

type ObjectWatch<K> = BoxStream<'static, watcher::Result<Event<K>>>;

impl Controller {
    /// Runs until stopped. Waits for the custom resource definitions if they are missing.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut requests = follow::<GpuRequest>(&self.client);
        let mut leases = follow::<GpuLease>(&self.client);
        let mut state = ControllerState::default();
        let mut pause = ASK_EVERY.1;
        let mut dirty = false;
        let mut settles: Option<Instant> = None;
        loop {
            if dirty && state.requests.is_complete() && state.leases.is_complete() {
                let waits = self.turn(&mut state).await;
                let now = self.clock.unix_ms();
                let warning = state.next_warning_ms.map(|at| Duration::from_millis(at.saturating_sub(now)));
                pause = if waits { ASK_EVERY.0 } else { ASK_EVERY.1 }.min(warning.unwrap_or(ASK_EVERY.1));
                dirty = false;
            }
            // An absent deadline is never waited for: the branch is off.
            let settled = settles.unwrap_or_else(Instant::now);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = requests.next() => {
                    let event = state.ok_or_log("gpurequests", event);
                    dirty |= event.is_some_and(|event| state.requests.take(event, |object| Some((key(object)?, Some(object.clone())))));
                }
                Some(event) = leases.next() => {
                    let event = state.ok_or_log("gpuleases", event);
                    if event.is_some_and(|event| state.leases.take(event, |object| Some((key(object)?, Some(object.clone()))))) {
                        settles.get_or_insert_with(|| Instant::now() + SETTLES_AFTER);
                    }
                }
                () = tokio::time::sleep_until(settled), if settles.is_some() => {
                    settles = None;
                    state.written_leases.clear();
                    dirty = true;
                }
                Ok(()) = self.desired.changed() => dirty = true,
                () = self.clock.sleep(pause) => dirty = true,
            }
        }
    }

    /// One round over all objects; true if any waits for the broker.
    pub(super) async fn turn(&self, state: &mut ControllerState) -> bool {
        let update = self.desired.borrow().clone();
        self.mirror_leases(state, &update).await;
        state.forget_deleted();
        let begun: Vec<Work> = state.requests.facts().map(|object| state.begin(object)).collect();
        let live = self.requests.list().await;
        let mut work: Vec<BoxFuture<'_, (Work, Result<bool, WriteError>)>> = Vec::with_capacity(begun.len());
        for begun in begun {
            work.push(Box::pin(self.work(begun, live.as_deref().ok(), update.state.as_deref())));
        }
        let results: Vec<_> = futures::stream::iter(work).buffer_unordered(CONCURRENT_OBJECTS).collect().await;
        let mut waits = false;
        for (work, result) in results {
            waits |= self.end(state, work, result).await;
        }
        if let Ok(live) = live {
            waits |= self.sweep(state, &live).await;
        }
        waits
    }

    /// Handles the result of work on one object; true if it must be polled.
    async fn end(&self, state: &mut ControllerState, mut work: Work, result: Result<bool, WriteError>) -> bool {
        let (uid, now) = (work.uid(), self.clock.unix_ms());
        for remark in std::mem::take(&mut work.remarks) {
            if state.remarks.is_due(&uid, &remark, now) {
                self.write_event(&work.object, remark).await;
            }
        }
        let name = key(&work.object).unwrap_or_default();
        state.end(work);
        match result {
            Ok(waits) => {
                state.failures.cleared(&uid);
                waits
            }
            Err(WriteError::Outdated(reason)) => {
                tracing::debug!(name, reason, "a GpuRequest changed: its next copy is processed");
                false
            }
            Err(WriteError::Failed(reason)) => {
                if state.failures.is_new(&uid, &reason) {
                    tracing::warn!(name, reason, "a GpuRequest cannot be processed yet");
                }
                true
            }
        }
    }

    async fn work(
        &self,
        mut work: Work,
        live: Option<&[v1::Request]>,
        desired: Option<&DesiredState>,
    ) -> (Work, Result<bool, WriteError>) {
        let result = self.reconcile_object(&mut work, live, desired).await;
        (work, result)
    }

    /// Reconciles one object; true if it must be polled.
    async fn reconcile_object(
        &self,
        work: &mut Work,
        live: Option<&[v1::Request]>,
        desired: Option<&DesiredState>,
    ) -> Result<bool, WriteError> {
        let has_finalizer = work.object.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
        if work.object.metadata.deletion_timestamp.is_some() {
            return if has_finalizer { self.remove(work, live).await } else { Ok(false) };
        }
        if !has_finalizer {
            self.finalizers(work, &[FINALIZER]).await?;
        }
        let now = self.clock.unix_ms();
        let known = work.object.status.as_ref().and_then(|status| status.request.clone());
        let is_known = known.is_some();
        let request = match known {
            None if is_refused(&work.object) && work.retry_refused_ms > now => return Ok(false),
            None => self.submit(work).await?,
            Some(id) => match live.and_then(|live| live.iter().find(|request| request.id == id)) {
                Some(request) => Ok(request.clone()),
                None if is_final(&work.object) => return Ok(false),
                None => self.requests.get(id).await,
            },
        };
        let object = &work.object;
        let status = match request {
            Ok(mut request) => {
                if is_known && request.state() == v1::RequestState::Queued {
                    request.message = self.explained(work, &request, now).await;
                }
                let object = &work.object;
                let is_its =
                    |lease: &&Lease| lease.request.to_string() == request.id && lease.id.to_string() == request.lease;
                let lease = desired.and_then(|state| state.leases.iter().find(is_its));
                reconcile::status(object, &request, lease, now)
            }
            Err(RequestError::Refused { code, reason }) => {
                reconcile::refused(object, "Refused", &camel(&code), &reason, now)
            }
            Err(RequestError::NotFound(_)) => {
                let text = "the broker does not know its request any more";
                reconcile::refused(object, "Completed", "Forgotten", text, now)
            }
            Err(error @ RequestError::Unavailable(_))
                if object.status.as_ref().is_some_and(|s| s.request.is_some()) =>
            {
                // The known state stays: an unreadable request is not a missing one.
                return Err(WriteError::Failed(format!("its state cannot be read: {error}")));
            }
            Err(error) => reconcile::refused(object, "Submitting", "BrokerUnavailable", &error.to_string(), now),
        };
        let ends = ["Completed", "Cancelled", "Failed", "Refused", "Active"];
        let waits = !status.state.as_deref().is_some_and(|state| ends.contains(&state));
        self.write_status(work, status).await?;
        Ok(waits)
    }

    /// Why it waits; asks at most once a minute.
    async fn explained(&self, work: &mut Work, request: &v1::Request, now: u64) -> String {
        if work.why.as_ref().is_none_or(|(_, asked)| now.saturating_sub(*asked) >= wait_reasons::EVERY_MS) {
            let text = match self.requests.explain(request.id.clone()).await {
                Ok(answer) => wait_reasons::summarize(&answer),
                Err(error) => {
                    tracing::debug!(request = request.id, %error, "why it waits cannot be read");
                    work.why.take().map(|(text, _)| text).unwrap_or_default()
                }
            };
            work.why = Some((text, now));
        }
        let text = work.why.as_ref().map(|(text, _)| text.clone());
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| request.message.clone())
    }

    /// Submits the request; a refusal is remembered, so that it is not repeated in every round.
    async fn submit(&self, work: &mut Work) -> Result<Result<v1::Request, RequestError>, WriteError> {
        let object = &work.object;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let api = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
        let found = within_limit(api.get_metadata_opt(&namespace))
            .await
            .map_err(|error| WriteError::Failed(format!("namespace {namespace} cannot be read: {error}")))?;
        let metadata = found.map(|namespace| namespace.metadata).unwrap_or_default();
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(CLASS)).cloned();
        let defaults = Defaults {
            cluster: self.cluster.clone(),
            tenant: label(TENANT_LABEL).unwrap_or_else(|| self.default_tenant.clone()),
            class: annotation.or_else(|| label(CLASS)).unwrap_or_else(|| self.default_class.clone()),
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let needs_nodes = object.spec.delivery.unwrap_or_default() == DeliveryKind::VirtualNode;
        let no_nodes = self.service.borrow().borrows.clone().err().filter(|_| needs_nodes);
        // Otherwise the agent would refuse the lease.
        let usage = NamespaceUse { namespace: &namespace, tenant: &defaults.tenant, default_tenant: &defaults.tenant };
        let opted_in = usage.check_offloading(&metadata.labels.clone().unwrap_or_default());
        let spec = match (no_nodes, opted_in) {
            (Some(why), _) => {
                Err(("virtual-node-unavailable", format!("this cluster can have no virtual nodes: {why}")))
            }
            (None, Err(DeliveryError::Permanent { code: code @ "namespace-not-opted-in", message })) if needs_nodes => {
                Err((code, message))
            }
            (None, _) => reconcile::spec(object, &defaults).map_err(|reason| ("invalid-field", reason)),
        };
        let (answer, pause) = match spec {
            Ok(spec) => (self.requests.submit(spec, reconcile::key(&uid)).await, REFUSED_FOR),
            Err((code, reason)) => (Err(RequestError::Refused { code: code.to_owned(), reason }), INCOMPLETE_FOR),
        };
        let until = || self.clock.unix_ms().saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        work.retry_refused_ms = if matches!(answer, Err(RequestError::Refused { .. })) { until() } else { 0 };
        Ok(answer)
    }

    /// Cancels the request of a deleted object, then removes its finalizer.
    async fn remove(&self, work: &mut Work, live: Option<&[v1::Request]>) -> Result<bool, WriteError> {
        let object = &work.object;
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let named = object.status.as_ref().and_then(|status| status.request.clone());
        let of_note = |live: &[v1::Request]| {
            let is_its = |request: &&v1::Request| {
                request.spec.as_ref().and_then(|spec| reconcile::uid_in(&spec.note)) == Some(uid.as_str())
            };
            live.iter().find(is_its).map(|request| request.id.clone())
        };
        let cancelled = match (named.or_else(|| live.and_then(of_note)), live) {
            (Some(request), _) => self.requests.cancel(request, format!("gpurequest-cancel-{uid}")).await,
            // The broker has no request for it.
            (None, Some(_)) => Ok(()),
            (None, None) => Err(RequestError::Unavailable("its requests cannot be listed".to_owned())),
        };
        if let Err(error) = cancelled {
            let deleted = object.metadata.deletion_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
            let since = self.clock.unix_ms().saturating_sub(u64::try_from(deleted).unwrap_or(0));
            if u128::from(since) < KEEP_DELETED.as_millis() {
                return Err(WriteError::Failed(format!("its request is not cancelled yet: {error}")));
            }
            let text = format!(
                "removed although its request was not cancelled ({error}); that follows when the broker answers again"
            );
            let reason = "ComityAbandoned".to_owned();
            work.remarks.push(Remark { type_: EventType::Warning, reason, text });
        }
        self.finalizers(work, &[]).await?;
        Ok(false)
    }

    /// Cancels requests whose objects are gone.
    async fn sweep(&self, state: &mut ControllerState, live: &[v1::Request]) -> bool {
        let now = self.clock.unix_ms();
        let objects: Vec<String> = state.requests.facts().filter_map(|object| object.metadata.uid.clone()).collect();
        let is_orphan = |request: &&v1::Request| {
            let uid = request.spec.as_ref().and_then(|spec| reconcile::uid_in(&spec.note));
            uid.is_some_and(|uid| !objects.iter().any(|known| known == uid))
        };
        let orphans: Vec<&v1::Request> = live.iter().filter(is_orphan).collect();
        state.orphans.retain(|id, _| orphans.iter().any(|request| request.id == *id));
        let orphans: Vec<v1::Request> = orphans.into_iter().cloned().collect();
        for request in &orphans {
            let since = *state.orphans.entry(request.id.clone()).or_insert(now);
            if now.saturating_sub(since) < ORPHANED_AFTER_MS {
                continue;
            }
            let key = format!("gpurequest-orphan-{}", request.id);
            match self.requests.cancel(request.id.clone(), key).await {
                Ok(()) => tracing::info!(request = request.id, "its GpuRequest is gone: cancelled"),
                Err(error) if state.failures.is_new(&request.id, &error.to_string()) => {
                    tracing::warn!(request = request.id, %error, "its GpuRequest is gone, and it cannot be cancelled \
                        yet")
                }
                Err(error) => tracing::debug!(request = request.id, %error, "it cannot be cancelled yet"),
            }
        }
        !orphans.is_empty()
    }
}

/// The events of all objects of a kind.
pub(crate) fn follow<K>(client: &kube::Client) -> ObjectWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher::watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff().boxed()
}

/// "namespace/name".
pub(crate) fn key(object: &impl Resource) -> Option<String> {
    Some(format!("{}/{}", object.meta().namespace.as_deref()?, object.meta().name.as_deref()?))
}

/// The namespace of an object.
pub(crate) fn namespace(object: &impl Resource) -> String {
    object.meta().namespace.clone().unwrap_or_default()
}

/// Whether the broker refused this generation of the object.
fn is_refused(object: &GpuRequest) -> bool {
    let status = object.status.clone().unwrap_or_default();
    status.state.as_deref() == Some("Refused") && status.observed_generation == object.metadata.generation
}

/// Whether the object's request has ended: it is not looked up again.
fn is_final(object: &GpuRequest) -> bool {
    let state = object.status.as_ref().and_then(|status| status.state.as_deref());
    matches!(state, Some("Completed" | "Cancelled" | "Failed"))
}
