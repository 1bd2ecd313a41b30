//! Carries ProvisioningRequests to `GpuRequest`s and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_runtime::Clock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, PodTemplate, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::owner_workload::{self, WorkloadNeed};
use super::progress::Progress;
use super::provisioning_request::ProvisioningRequest;
use super::{PROVISIONING_CLASS, pods_demand};
use crate::burst::facts::namespace::rules;
use crate::burst::{BurstSettings, OFFLOAD_LABEL, Rules};
use crate::crd::{GpuLease, GpuRequest, GpuRequestSpec, follow, key, namespace};

/// How often Workloads are checked: their end gives leases back.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Turns that follow events do not check a Workload again within this time. Less than the period, so that no check is
/// left out and the next one is never ten seconds away.
const FRESH_FOR_MS: u64 = 4_000;
/// ProvisioningRequests processed concurrently.
const CONCURRENT_REQUESTS: usize = 8;

/// Serves ProvisioningRequests.
pub(crate) struct Provisioner {
    /// This cluster's API server.
    pub(crate) client: kube::Client,
    /// The section `burst`.
    pub(crate) settings: BurstSettings,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct State {
    requests: WatchCache<ProvisioningRequest>,
    gpu_requests: WatchCache<GpuRequest>,
    /// By UID of the ProvisioningRequest.
    checks: BTreeMap<String, WorkloadCheck>,
    failures: FailureLog,
}

/// The last check of a Workload.
#[derive(Clone, Copy, Debug)]
struct WorkloadCheck {
    at_ms: u64,
    need: WorkloadNeed,
}

/// The templates of a ProvisioningRequest's pods, with their counts, and the rules of its namespace.
struct Pods {
    templates: Vec<(PodTemplateSpec, i32)>,
    rules: Rules,
}

/// What came of one ProvisioningRequest.
struct Processed<'r> {
    request: &'r ProvisioningRequest,
    check: Option<WorkloadCheck>,
    result: Result<(), String>,
}

impl Provisioner {
    /// Runs until stopped. Waits for the custom resource definitions if they are missing.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut requests = follow::<ProvisioningRequest>(&self.client);
        let mut gpu_requests = follow::<GpuRequest>(&self.client);
        let (mut state, mut dirty) = (State::default(), false);
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        loop {
            if dirty && state.requests.is_complete() && state.gpu_requests.is_complete() {
                self.turn(&mut state).await;
                dirty = false;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = requests.next() => {
                    let is_ours = |request: &ProvisioningRequest| request.spec.provisioning_class_name == PROVISIONING_CLASS;
                    let reduce = |object: &ProvisioningRequest| Some((key(object)?, Some(object.clone()).filter(is_ours)));
                    let event = ok_or_log(&mut state.failures, "provisioningrequests", event);
                    dirty |= event.is_some_and(|event| state.requests.take(event, reduce));
                }
                Some(event) = gpu_requests.next() => {
                    let event = ok_or_log(&mut state.failures, "gpurequests", event);
                    let reduce = |object: &GpuRequest| Some((key(object)?, Some(object.clone())));
                    dirty |= event.is_some_and(|event| state.gpu_requests.take(event, reduce));
                }
                _ = ticks.tick() => dirty = true,
            }
        }
    }

    async fn turn(&self, state: &mut State) {
        let mut work: Vec<BoxFuture<'_, Processed<'_>>> = Vec::new();
        for request in state.requests.facts().filter(|request| request.metadata.deletion_timestamp.is_none()) {
            let gpus = key(request).and_then(|name| state.gpu_requests.get(&name));
            let last = state.checks.get(&uid(request)).copied();
            work.push(Box::pin(self.process(request, gpus, last)));
        }
        let outcomes: Vec<_> = futures::stream::iter(work).buffer_unordered(CONCURRENT_REQUESTS).collect().await;
        let mut checks = BTreeMap::new();
        for Processed { request, check, result } in outcomes {
            let (uid, name) = (uid(request), key(request).unwrap_or_default());
            match result {
                Ok(()) => state.failures.cleared(&uid),
                Err(reason) if state.failures.is_new(&uid, &reason) => {
                    tracing::warn!(name, reason, "a ProvisioningRequest cannot be processed yet");
                }
                Err(_) => {}
            }
            checks.extend(check.map(|check| (uid, check)));
        }
        state.checks = checks;
    }

    async fn process<'r>(
        &self,
        request: &'r ProvisioningRequest,
        gpus: Option<&GpuRequest>,
        last: Option<WorkloadCheck>,
    ) -> Processed<'r> {
        let own = gpus.filter(|gpus| is_of(gpus, request));
        if request.is_final() {
            return Processed { request, check: last, result: self.delete_gpus(own).await };
        }
        let check = match self.check(request, own, last).await {
            Ok(check) => check,
            Err(error) => return Processed { request, check: last, result: Err(error.to_string()) },
        };
        let result = match check.map(|check| check.need) {
            None => {
                let why = "no Workload of Kueue owns it, and only those of queues are served".to_owned();
                self.write(request, &Progress::Failed(why)).await.map(drop)
            }
            Some(WorkloadNeed::Nothing) => self.delete_gpus(own).await,
            Some(WorkloadNeed::NothingNow) => self.delete_request(request).await,
            Some(WorkloadNeed::Capacity) => self.provide(request, gpus).await,
        };
        Processed { request, check, result }
    }

    /// What the Workload needs; `None` without one. One that has finished is not read again.
    async fn check(
        &self,
        request: &ProvisioningRequest,
        own: Option<&GpuRequest>,
        last: Option<WorkloadCheck>,
    ) -> Result<Option<WorkloadCheck>, CallError> {
        let Some(owner) = request.workload() else { return Ok(None) };
        let now = self.clock.unix_ms();
        // Its GpuRequest is also gone if the Workload has just finished.
        let is_unclear = request.provisioned_lease().is_some() && is_gone(own);
        let stands = last.filter(|last| {
            let is_fresh = now.saturating_sub(last.at_ms) < FRESH_FOR_MS;
            last.need == WorkloadNeed::Nothing || (is_fresh && !is_unclear && last.need == WorkloadNeed::Capacity)
        });
        if stands.is_some() {
            return Ok(stands);
        }
        let need = owner_workload::read(&self.client, &namespace(request), owner).await?;
        Ok(Some(WorkloadCheck { at_ms: now, need }))
    }

    /// Brings a ProvisioningRequest whose Workload waits or runs one step further.
    async fn provide(&self, request: &ProvisioningRequest, gpus: Option<&GpuRequest>) -> Result<(), String> {
        let own = gpus.filter(|gpus| is_of(gpus, request));
        if request.provisioned_lease().is_some() && is_gone(own) {
            // At once, and not when it is gone: Kueue then makes no more pods for the lease.
            let why = "its GpuRequest was deleted, and its lease with it".to_owned();
            return self.write(request, &Progress::Failed(why)).await.map(drop);
        }
        let Some(gpus) = gpus else { return self.create(request).await };
        if is_gone(Some(gpus)) || is_of_predecessor(gpus, request) {
            // The next one is created once it is gone.
            return Ok(());
        }
        if own.is_none() {
            let name = gpus.metadata.name.as_deref().unwrap_or_default();
            let why = format!("a GpuRequest {name} is there that is not its own; delete or rename that");
            return self.write(request, &Progress::Failed(why)).await.map(drop);
        }
        let mut progress = Progress::of(request, gpus);
        if let Progress::Provisioned(lease) = &progress
            && request.provisioned_lease().is_none()
            && let Some(why) = self.unfit(request, lease).await?
        {
            progress = Progress::Failed(why);
        }
        if request.status.as_ref() == Some(&progress.status(request, self.clock.unix_ms())) {
            return Ok(());
        }
        // Only once Kueue knows why: what was not written is written again, with the newest copy.
        if self.write(request, &progress).await? && progress.is_over() { self.delete_gpus(own).await } else { Ok(()) }
    }

    async fn create(&self, request: &ProvisioningRequest) -> Result<(), String> {
        let name = request.metadata.name.clone().unwrap_or_default();
        let api = Api::<ProvisioningRequest>::namespaced(self.client.clone(), &namespace(request));
        let newest = within_limit(api.get_opt(&name)).await.map_err(|error| error.to_string())?;
        // The watch may lag: what has ended meanwhile is not asked for again.
        let waits = |newest: &ProvisioningRequest| {
            uid(newest) == uid(request)
                && newest.metadata.deletion_timestamp.is_none()
                && !newest.is_final()
                && newest.provisioned_lease().is_none()
        };
        if !newest.as_ref().is_some_and(waits) {
            return Ok(());
        }
        let asked = match self.pods(request).await.map_err(|error| error.to_string())? {
            Ok(Pods { templates, rules }) => pods_demand::gpu_request(request, &templates, &rules, &self.settings),
            Err(why) => Err(why),
        };
        let spec = match asked {
            Ok(spec) => spec,
            Err(why) => return self.write(request, &Progress::Failed(why)).await.map(drop),
        };
        let gpus = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace(request));
        match within_limit(gpus.create(&PostParams::default(), &gpu_request(request, spec))).await {
            Ok(_) => Ok(()),
            // The watch shows it soon.
            Err(CallError::Status(status)) if status.code == 409 => Ok(()),
            Err(CallError::Status(status)) if status.code == 422 => {
                self.write(request, &Progress::Failed(status.message.clone())).await.map(drop)
            }
            Err(error) => Err(format!("its GpuRequest cannot be created: {error}")),
        }
    }

    /// The pods, or why no lease can serve them.
    async fn pods(&self, request: &ProvisioningRequest) -> Result<Result<Pods, String>, CallError> {
        let namespace = namespace(request);
        let api = Api::<Namespace>::all(self.client.clone());
        let Some(found) = within_limit(api.get_metadata_opt(&namespace)).await? else {
            return Ok(Err(format!("namespace {namespace} is gone")));
        };
        let rules = match rules(&found, &self.settings) {
            Some(Ok(rules)) => rules,
            Some(Err(why)) => return Ok(Err(why)),
            None => return Ok(Err(format!("namespace {namespace} may not burst: label it {OFFLOAD_LABEL}=true"))),
        };
        let api = Api::<PodTemplate>::namespaced(self.client.clone(), &namespace);
        let mut templates = Vec::with_capacity(request.spec.pod_sets.len());
        for set in &request.spec.pod_sets {
            let name = &set.pod_template_ref.name;
            match within_limit(api.get_opt(name)).await? {
                Some(PodTemplate { template: Some(template), .. }) => templates.push((template, set.count)),
                _ => return Ok(Err(format!("its PodTemplate {name} is missing or empty"))),
            }
        }
        Ok(Ok(Pods { templates, rules }))
    }

    /// Why the pods could never run on a lease: its donor counts GPUs by another resource than they request.
    async fn unfit(&self, request: &ProvisioningRequest, lease: &str) -> Result<Option<String>, String> {
        let api = Api::<GpuLease>::namespaced(self.client.clone(), &namespace(request));
        let leases = within_limit(api.list(&ListParams::default())).await.map_err(|error| error.to_string())?;
        let counted = leases.items.into_iter().find(|found| found.spec.lease == lease).map(|found| found.spec.resource);
        let Some(counted) = counted.filter(|resource| !resource.is_empty()) else { return Ok(None) };
        let requested = match self.pods(request).await.map_err(|error| error.to_string())? {
            Ok(Pods { templates, rules }) => pods_demand::resource(&templates, &rules),
            Err(why) => Err(why),
        };
        Ok(match requested {
            Ok(requested) if requested == counted => None,
            Ok(requested) => Some(format!(
                "{lease} counts its GPUs as {counted}, and the pods request {requested}; request {counted}, or name \
                 another class by comity.dev.class"
            )),
            Err(why) => Some(why),
        })
    }

    /// Deletes a ProvisioningRequest that Kueue has forgotten; garbage collection removes its `GpuRequest`.
    async fn delete_request(&self, request: &ProvisioningRequest) -> Result<(), String> {
        self.delete(request, "the ProvisioningRequest").await
    }

    async fn delete_gpus(&self, own: Option<&GpuRequest>) -> Result<(), String> {
        match own.filter(|gpus| gpus.metadata.deletion_timestamp.is_none()) {
            Some(gpus) => self.delete(gpus, "its GpuRequest").await,
            None => Ok(()),
        }
    }

    async fn delete<K>(&self, object: &K, what: &str) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), &namespace(object));
        let preconditions = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match within_limit(api.delete(object.meta().name.as_deref().unwrap_or_default(), &params)).await {
            Ok(_) => Ok(()),
            Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(format!("{what} cannot be deleted: {error}")),
        }
    }

    /// Writes the status; false if the object changed meanwhile, and its watch brings the next copy.
    async fn write(&self, request: &ProvisioningRequest, progress: &Progress) -> Result<bool, String> {
        let name = request.metadata.name.clone().unwrap_or_default();
        // The resource version protects an object of the same name that was made since, and conditions of others.
        let apply = json!({
            "apiVersion": ProvisioningRequest::api_version(&()), "kind": ProvisioningRequest::kind(&()),
            "metadata": { "name": name, "resourceVersion": request.metadata.resource_version },
            "status": progress.status(request, self.clock.unix_ms()),
        });
        let api = Api::<ProvisioningRequest>::namespaced(self.client.clone(), &namespace(request));
        let params = PatchParams::apply("comity-agent").force();
        match within_limit(api.patch_status(&name, &params, &Patch::Apply(&apply))).await {
            Ok(_) => Ok(true),
            Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(format!("its status cannot be written: {error}")),
        }
    }
}

/// The `GpuRequest` of a ProvisioningRequest, which owns it.
fn gpu_request(request: &ProvisioningRequest, spec: GpuRequestSpec) -> GpuRequest {
    let name = request.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: ProvisioningRequest::api_version(&()).into_owned(),
        kind: ProvisioningRequest::kind(&()).into_owned(),
        name: name.clone(),
        uid: uid(request),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let object = GpuRequest::new(&name, spec);
    GpuRequest { metadata: ObjectMeta { owner_references: Some(vec![owner]), ..object.metadata }, ..object }
}

/// Logs a failing watch once: the definitions may not be installed.
fn ok_or_log<K>(failures: &mut FailureLog, what: &'static str, event: watcher::Result<Event<K>>) -> Option<Event<K>> {
    match event {
        Ok(event) => Some(event),
        Err(error) => {
            if failures.is_new(what, "") {
                tracing::warn!(what, %error, "cannot be watched yet; install Kueue with ProvisioningRequests, and apply \
                    deploy/crds and deploy/agent/kueue.yaml");
            }
            None
        }
    }
}

/// Whether the `GpuRequest` was made for this ProvisioningRequest.
fn is_of(gpus: &GpuRequest, request: &ProvisioningRequest) -> bool {
    gpus.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid(request))
}

/// Whether it was made for an earlier ProvisioningRequest of the same name: garbage collection removes it.
fn is_of_predecessor(gpus: &GpuRequest, request: &ProvisioningRequest) -> bool {
    let is_its = |owner: &OwnerReference| {
        owner.kind == ProvisioningRequest::kind(&())
            && Some(&owner.name) == request.metadata.name.as_ref()
            && owner.uid != uid(request)
    };
    gpus.metadata.owner_references.iter().flatten().any(is_its)
}

fn is_gone(gpus: Option<&GpuRequest>) -> bool {
    gpus.is_none_or(|gpus| gpus.metadata.deletion_timestamp.is_some())
}

fn uid(request: &ProvisioningRequest) -> String {
    request.metadata.uid.clone().unwrap_or_default()
}
