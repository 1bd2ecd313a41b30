//! Carries `GpuRequest`s to the broker and back, and keeps `GpuLease`s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_proto::v1;
use comity_runtime::Clock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::{Event as Record, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gpu_request::GpuRequestStatus;
use super::reconcile::{self, Defaults};
use super::{FINALIZER, GpuLease, GpuRequest, camel};
use crate::burst::{CLASS, RequestError, Requests, TENANT_LABEL};
use crate::desired::Update;
use crate::kubernetes_api::within_limit;
use crate::observe::mirror::Mirror;
use crate::reclaim::Saved;

/// How often the broker is asked while a request waits, and while none does.
const ASK_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// A deleted object is kept this long for a broker that does not answer. Afterwards it goes, and its request is taken
/// back when the broker is heard again: requests say which object they are for.
const KEEP_DELETED: Duration = Duration::from_secs(600);
/// A request whose object is not seen is taken back after this time.
const ORPHANED_AFTER_MS: u64 = 10_000;
/// After so long a `GpuLease` that was written is looked at again as it is: until then its watch tells of it as it was before.
const SETTLES_AFTER: Duration = Duration::from_millis(500);
/// Objects that are worked on at once.
const AT_ONCE: usize = 8;

/// What the controller is given.
pub struct Controller {
    /// This cluster.
    pub cluster: String,
    /// Its API server.
    pub client: kube::Client,
    /// The broker.
    pub requests: Arc<dyn Requests>,
    /// What the broker wants.
    pub desired: watch::Receiver<Update>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Class where neither object nor namespace names one.
    pub default_class: String,
    /// Tenant where the namespace names none.
    pub default_tenant: String,
    /// Told of leases of which a `GpuLease` says that the work is saved.
    pub saved: watch::Sender<Saved>,
}

type Watch<K> = BoxStream<'static, watcher::Result<Event<K>>>;

#[derive(Default)]
pub(super) struct Seen {
    requests: Mirror<GpuRequest>,
    pub(super) leases: Mirror<GpuLease>,
    /// Leases as they were written last, until they have settled: each change of a lease is written once.
    pub(super) written: BTreeMap<String, GpuLease>,
    /// When requests without an object were first seen.
    orphans: BTreeMap<String, u64>,
    /// A watch that fails is said once, not each time: the definitions may not be installed.
    said: bool,
}

impl Controller {
    /// Runs until told to stop. Where the definitions are not installed it waits for them.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut requests = follow::<GpuRequest>(&self.client);
        let mut leases = follow::<GpuLease>(&self.client);
        let mut seen = Seen::default();
        let mut pause = ASK_EVERY.1;
        let mut dirty = false;
        let mut settles: Option<Instant> = None;
        loop {
            if dirty && seen.requests.is_complete() && seen.leases.is_complete() {
                let waits = self.turn(&mut seen).await;
                pause = if waits { ASK_EVERY.0 } else { ASK_EVERY.1 };
                dirty = false;
            }
            // An absent deadline is never waited for: the branch is off.
            let settled = settles.unwrap_or_else(Instant::now);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = requests.next() => {
                    let event = seen.taken("gpurequests", event);
                    dirty |= event.is_some_and(|event| seen.requests.take(event, |object| Some((key(object)?, Some(object.clone())))));
                }
                Some(event) = leases.next() => {
                    let event = seen.taken("gpuleases", event);
                    if event.is_some_and(|event| seen.leases.take(event, |object| Some((key(object)?, Some(object.clone()))))) {
                        settles.get_or_insert_with(|| Instant::now() + SETTLES_AFTER);
                    }
                }
                () = tokio::time::sleep_until(settled), if settles.is_some() => {
                    settles = None;
                    seen.written.clear();
                    dirty = true;
                }
                Ok(()) = self.desired.changed() => dirty = true,
                () = self.clock.sleep(pause) => dirty = true,
            }
        }
    }

    /// Works on everything once; whether something waits for the broker.
    async fn turn(&self, seen: &mut Seen) -> bool {
        let update = self.desired.borrow().clone();
        self.mirror_leases(seen, &update).await;
        let objects: Vec<&GpuRequest> = seen.requests.facts().collect();
        let live = self.requests.list().await;
        let mut work: Vec<BoxFuture<'_, Result<bool, String>>> = Vec::with_capacity(objects.len());
        for object in objects {
            work.push(Box::pin(self.work(object, live.as_deref().ok(), update.state.as_deref())));
        }
        let results: Vec<Result<bool, String>> = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect().await;
        let mut waits = false;
        for result in results {
            match result {
                Ok(more) => waits |= more,
                Err(reason) => {
                    tracing::warn!(reason, "a GpuRequest cannot be brought on yet");
                    waits = true;
                }
            }
        }
        if let Ok(live) = live {
            waits |= self.sweep(seen, &live).await;
        }
        waits
    }

    /// One object: whether it waits for something that no watch will tell.
    async fn work(
        &self,
        object: &GpuRequest,
        live: Option<&[v1::Request]>,
        desired: Option<&v1::DesiredState>,
    ) -> Result<bool, String> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let has_finalizer = object.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
        if object.metadata.deletion_timestamp.is_some() {
            return if has_finalizer { self.remove(object, live).await } else { Ok(false) };
        }
        if !has_finalizer {
            self.finalizers(object, &[FINALIZER]).await?;
        }
        let now = self.clock.unix_ms();
        let known = object.status.as_ref().and_then(|status| status.request.clone());
        let request = match known {
            None => self.submit(object).await?,
            Some(id) => match live.and_then(|live| live.iter().find(|request| request.id == id)) {
                Some(request) => Ok(request.clone()),
                None if is_final(object) => return Ok(false),
                None => self.requests.get(id).await,
            },
        };
        let status = match request {
            Ok(request) => {
                let lease = desired.and_then(|state| {
                    state.leases.iter().find(|lease| lease.request == request.id && lease.id == request.lease)
                });
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
                // What was known stays: cannot see is not gone.
                tracing::warn!(uid, %error, "a GpuRequest's state cannot be read");
                return Ok(true);
            }
            Err(error) => reconcile::refused(object, "Submitting", "BrokerUnavailable", &error.to_string(), now),
        };
        let waits = !matches!(status.state.as_deref(), Some("Completed" | "Cancelled" | "Failed" | "Active"));
        self.write_status(object, status).await?;
        Ok(waits)
    }

    async fn submit(&self, object: &GpuRequest) -> Result<Result<v1::Request, RequestError>, String> {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let api = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
        let found = within_limit(api.get_metadata_opt(&namespace))
            .await
            .map_err(|error| format!("namespace {namespace} cannot be read: {error}"))?;
        let metadata = found.map(|namespace| namespace.metadata).unwrap_or_default();
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(CLASS)).cloned();
        let defaults = Defaults {
            cluster: self.cluster.clone(),
            tenant: label(TENANT_LABEL).unwrap_or_else(|| self.default_tenant.clone()),
            class: annotation.or_else(|| label(CLASS)).unwrap_or_else(|| self.default_class.clone()),
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        match reconcile::spec(object, &defaults) {
            Ok(spec) => Ok(self.requests.submit(spec, reconcile::key(&uid)).await),
            Err(reason) => Ok(Err(RequestError::Refused { code: "invalid-field".to_owned(), reason })),
        }
    }

    /// Takes the request of a deleted object back, then lets the object go.
    async fn remove(&self, object: &GpuRequest, live: Option<&[v1::Request]>) -> Result<bool, String> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let named = object.status.as_ref().and_then(|status| status.request.clone());
        let of_purpose = |live: &[v1::Request]| {
            let is_its = |request: &&v1::Request| {
                request.spec.as_ref().and_then(|spec| reconcile::uid_in(&spec.purpose)) == Some(uid.as_str())
            };
            live.iter().find(is_its).map(|request| request.id.clone())
        };
        let cancelled = match (named.or_else(|| live.and_then(of_purpose)), live) {
            (Some(request), _) => self.requests.cancel(request, format!("gpurequest-cancel-{uid}")).await,
            // Nothing of it is at the broker.
            (None, Some(_)) => Ok(()),
            (None, None) => Err(RequestError::Unavailable("its requests cannot be listed".to_owned())),
        };
        if let Err(error) = cancelled {
            let deleted = object.metadata.deletion_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
            let since = self.clock.unix_ms().saturating_sub(u64::try_from(deleted).unwrap_or(0));
            if u128::from(since) < KEEP_DELETED.as_millis() {
                return Err(format!("its request is not taken back yet: {error}"));
            }
            let text = format!(
                "removed although its request was not taken back ({error}); that is done when the broker is heard again"
            );
            self.tell(object, EventType::Warning, "ComityAbandoned", text).await;
        }
        self.finalizers(object, &[]).await?;
        Ok(false)
    }

    /// Takes back requests whose objects are gone.
    async fn sweep(&self, seen: &mut Seen, live: &[v1::Request]) -> bool {
        let now = self.clock.unix_ms();
        let objects: Vec<String> = seen.requests.facts().filter_map(|object| object.metadata.uid.clone()).collect();
        let is_orphan = |request: &&v1::Request| {
            let uid = request.spec.as_ref().and_then(|spec| reconcile::uid_in(&spec.purpose));
            uid.is_some_and(|uid| !objects.iter().any(|known| known == uid))
        };
        let orphans: Vec<&v1::Request> = live.iter().filter(is_orphan).collect();
        seen.orphans.retain(|id, _| orphans.iter().any(|request| request.id == *id));
        for request in &orphans {
            let since = *seen.orphans.entry(request.id.clone()).or_insert(now);
            if now.saturating_sub(since) < ORPHANED_AFTER_MS {
                continue;
            }
            let key = format!("gpurequest-orphan-{}", request.id);
            match self.requests.cancel(request.id.clone(), key).await {
                Ok(()) => tracing::info!(request = request.id, "its GpuRequest is gone: taken back"),
                Err(error) => {
                    tracing::warn!(request = request.id, %error, "its GpuRequest is gone, and it cannot be taken back yet")
                }
            }
        }
        !orphans.is_empty()
    }

    async fn finalizers(&self, object: &GpuRequest, names: &[&str]) -> Result<(), String> {
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace(object));
        let name = object.metadata.name.clone().unwrap_or_default();
        let others = object.metadata.finalizers.iter().flatten().filter(|one| *one != FINALIZER).cloned();
        let all: Vec<String> = others.chain(names.iter().map(|name| (*name).to_owned())).collect();
        // The resource version makes it certain that no finalizer of others is lost.
        let patch = json!({ "metadata": { "finalizers": all, "resourceVersion": object.metadata.resource_version } });
        match within_limit(api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))).await {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(format!("the finalizer of GpuRequest {}/{name} cannot be written: {error}", namespace(object)))
            }
        }
    }

    async fn write_status(&self, object: &GpuRequest, status: GpuRequestStatus) -> Result<(), String> {
        let old = object.status.clone().unwrap_or_default();
        if old == status {
            return Ok(());
        }
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace(object));
        let name = object.metadata.name.clone().unwrap_or_default();
        let apply = json!({
            "apiVersion": GpuRequest::api_version(&()), "kind": GpuRequest::kind(&()),
            "metadata": { "name": name }, "status": status,
        });
        within_limit(api.patch_status(&name, &PatchParams::apply("comity-agent").force(), &Patch::Apply(&apply)))
            .await
            .map_err(|error| {
                format!("the status of GpuRequest {}/{name} cannot be written: {error}", namespace(object))
            })?;
        if old.state != status.state {
            let state = status.state.as_deref().unwrap_or("Unknown");
            let is_bad = matches!(state, "Refused" | "Failed");
            let kind = if is_bad { EventType::Warning } else { EventType::Normal };
            let text = status.message.clone().unwrap_or_else(|| format!("it is {state}"));
            self.tell(object, kind, &format!("Comity{state}"), text).await;
        }
        Ok(())
    }

    pub(super) async fn tell(
        &self,
        object: &impl Resource<DynamicType = ()>,
        type_: EventType,
        reason: &str,
        text: String,
    ) {
        let reporter = Reporter { controller: "comity-agent".to_owned(), instance: None };
        let recorder = Recorder::new(self.client.clone(), reporter);
        let reference: ObjectReference = object.object_ref(&());
        let event = Record {
            type_,
            reason: reason.to_owned(),
            note: Some(text.chars().take(500).collect()),
            action: "Request".to_owned(),
            secondary: None,
        };
        if let Err(error) = within_limit(recorder.publish(&event, &reference)).await {
            tracing::debug!(%error, reason, "an event cannot be written");
        }
    }
}

impl Seen {
    fn taken<K>(&mut self, what: &str, event: watcher::Result<Event<K>>) -> Option<Event<K>> {
        event
            .inspect_err(|error| {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!(what, %error, "cannot be watched and is tried again; apply deploy/crds and deploy/agent/burst.yaml");
                }
            })
            .ok()
    }
}

fn follow<K>(client: &kube::Client) -> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher::watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff().boxed()
}

pub(super) fn key(object: &impl Resource) -> Option<String> {
    Some(format!("{}/{}", object.meta().namespace.as_deref()?, object.meta().name.as_deref()?))
}

pub(super) fn namespace(object: &impl Resource) -> String {
    object.meta().namespace.clone().unwrap_or_default()
}

/// Whether the object's request has ended: it is not looked up again.
fn is_final(object: &GpuRequest) -> bool {
    let state = object.status.as_ref().and_then(|status| status.state.as_deref());
    matches!(state, Some("Completed" | "Cancelled" | "Failed"))
}
