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
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::provisioning_request::ProvisioningRequest;
use super::standing::Standing;
use super::{PROVISIONING_CLASS, owner_workload, pods_demand};
use crate::burst::facts::namespace::rules;
use crate::burst::{BurstSettings, OFFLOAD_LABEL};
use crate::crd::{GpuRequest, follow, key};

/// How often Workloads are looked at: their end gives the lease back.
const LOOK_EVERY: Duration = Duration::from_secs(10);
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
    /// When Workloads were looked at, by the UIDs of their ProvisioningRequests.
    looked_ms: BTreeMap<String, u64>,
    failures: FailureLog,
}

/// A change to make.
enum Step {
    /// The `GpuRequest` is asked for.
    Create,
    /// The lease is no longer needed.
    Delete,
    /// The ProvisioningRequest is told.
    Tell(Standing),
}

/// What came of one ProvisioningRequest.
struct Worked<'r> {
    request: &'r ProvisioningRequest,
    /// Whether its Workload was looked at.
    looks: bool,
    result: Result<(), String>,
}

impl Provisioner {
    /// Runs until stopped. Waits for the custom resource definitions if they are missing.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut requests = follow::<ProvisioningRequest>(&self.client);
        let mut gpu_requests = follow::<GpuRequest>(&self.client);
        let (mut state, mut dirty) = (State::default(), false);
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
                () = self.clock.sleep(LOOK_EVERY) => dirty = true,
            }
        }
    }

    async fn turn(&self, state: &mut State) {
        let now = self.clock.unix_ms();
        let live: Vec<&ProvisioningRequest> =
            state.requests.facts().filter(|request| request.metadata.deletion_timestamp.is_none()).collect();
        let due = |uid: &str| {
            let looked = state.looked_ms.get(uid).copied().unwrap_or(0);
            u128::from(now.saturating_sub(looked)) >= LOOK_EVERY.as_millis()
        };
        let mut work: Vec<BoxFuture<'_, Worked<'_>>> = Vec::new();
        for request in live {
            let gpus = key(request).and_then(|name| state.gpu_requests.get(&name));
            let looks = due(&uid(request));
            work.push(Box::pin(
                async move { Worked { request, looks, result: self.work(request, gpus, looks).await } },
            ));
        }
        let done: Vec<_> = futures::stream::iter(work).buffer_unordered(CONCURRENT_REQUESTS).collect().await;
        let mut looked = BTreeMap::new();
        let mut results = Vec::with_capacity(done.len());
        for Worked { request, looks, result } in done {
            let before = state.looked_ms.get(&uid(request)).copied().unwrap_or(0);
            looked.insert(uid(request), if looks { now } else { before });
            results.push((uid(request), key(request).unwrap_or_default(), result));
        }
        state.looked_ms = looked;
        for (uid, name, result) in results {
            match result {
                Ok(()) => state.failures.cleared(&uid),
                Err(reason) if state.failures.is_new(&uid, &reason) => {
                    tracing::warn!(name, reason, "a ProvisioningRequest cannot be processed yet");
                }
                Err(_) => {}
            }
        }
    }

    async fn work(&self, request: &ProvisioningRequest, gpus: Option<&GpuRequest>, looks: bool) -> Result<(), String> {
        match self.step(request, gpus, looks).await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(Step::Create) => self.create(request).await,
            Some(Step::Delete) => self.delete(gpus).await,
            Some(Step::Tell(standing)) => {
                self.tell(request, &standing).await?;
                if standing.is_over() { self.delete(gpus).await } else { Ok(()) }
            }
        }
    }

    async fn step(
        &self,
        request: &ProvisioningRequest,
        gpus: Option<&GpuRequest>,
        looks: bool,
    ) -> Result<Option<Step>, CallError> {
        let was_provisioned = request.provisioned_lease().is_some();
        if request.is_final() {
            return Ok(gpus.filter(|gpus| is_of(gpus, request)).map(|_| Step::Delete));
        }
        let is_leaving = gpus.is_none_or(|gpus| gpus.metadata.deletion_timestamp.is_some());
        if was_provisioned
            && (looks || is_leaving)
            && let Some(owner) = request.workload()
            && owner_workload::has_finished(&self.client, &namespace(request), owner).await?
        {
            return Ok(gpus.filter(|gpus| is_of(gpus, request)).map(|_| Step::Delete));
        }
        Ok(match gpus {
            // At once, and not when it is gone: Kueue then makes no more pods for the lease.
            _ if was_provisioned && is_leaving => {
                Some(Step::Tell(Standing::Failed("its GpuRequest was deleted, and its lease with it".to_owned())))
            }
            None => Some(Step::Create),
            // Asked for again once it is gone.
            Some(_) if is_leaving => None,
            Some(gpus) if !is_of(gpus, request) => {
                let name = gpus.metadata.name.as_deref().unwrap_or_default();
                Some(Step::Tell(Standing::Failed(format!(
                    "there is a GpuRequest {name} that is not its own: delete that"
                ))))
            }
            Some(gpus) => {
                let standing = Standing::of(request, gpus);
                let status = standing.status(request, self.clock.unix_ms());
                (request.status.as_ref() != Some(&status)).then_some(Step::Tell(standing))
            }
        })
    }

    async fn create(&self, request: &ProvisioningRequest) -> Result<(), String> {
        let spec = match self.spec(request).await.map_err(|error| error.to_string())? {
            Ok(spec) => spec,
            Err(why) => return self.tell(request, &Standing::Failed(why)).await,
        };
        let name = request.metadata.name.clone().unwrap_or_default();
        let owner = OwnerReference {
            api_version: ProvisioningRequest::api_version(&()).into_owned(),
            kind: ProvisioningRequest::kind(&()).into_owned(),
            name: name.clone(),
            uid: uid(request),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let mut object = GpuRequest::new(&name, spec);
        object.metadata = ObjectMeta { owner_references: Some(vec![owner]), ..object.metadata };
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace(request));
        match within_limit(api.create(&PostParams::default(), &object)).await {
            Ok(_) => Ok(()),
            // The watch shows it soon.
            Err(CallError::Status(status)) if status.code == 409 => Ok(()),
            Err(CallError::Status(status)) if status.code == 422 => {
                self.tell(request, &Standing::Failed(status.message.clone())).await
            }
            Err(error) => Err(format!("its GpuRequest cannot be created: {error}")),
        }
    }

    /// What to ask for, or why no lease can serve it.
    async fn spec(
        &self,
        request: &ProvisioningRequest,
    ) -> Result<Result<crate::crd::GpuRequestSpec, String>, CallError> {
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
        let templates = Api::<PodTemplate>::namespaced(self.client.clone(), &namespace);
        let mut pods: Vec<(PodTemplateSpec, i32)> = Vec::with_capacity(request.spec.pod_sets.len());
        for set in &request.spec.pod_sets {
            let name = &set.pod_template_ref.name;
            match within_limit(templates.get_opt(name)).await? {
                Some(PodTemplate { template: Some(template), .. }) => pods.push((template, set.count)),
                _ => return Ok(Err(format!("its PodTemplate {name} is missing or empty"))),
            }
        }
        Ok(pods_demand::gpu_request(request, &pods, &rules, &self.settings))
    }

    async fn delete(&self, gpus: Option<&GpuRequest>) -> Result<(), String> {
        let Some(gpus) = gpus.filter(|gpus| gpus.metadata.deletion_timestamp.is_none()) else { return Ok(()) };
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace(gpus));
        let preconditions = Preconditions { uid: gpus.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = gpus.metadata.name.clone().unwrap_or_default();
        match within_limit(api.delete(&name, &params)).await {
            Ok(_) => Ok(()),
            Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(format!("its GpuRequest cannot be deleted: {error}")),
        }
    }

    async fn tell(&self, request: &ProvisioningRequest, standing: &Standing) -> Result<(), String> {
        let name = request.metadata.name.clone().unwrap_or_default();
        // The resource version protects an object of the same name that was made since, and conditions of others.
        let apply = json!({
            "apiVersion": ProvisioningRequest::api_version(&()), "kind": ProvisioningRequest::kind(&()),
            "metadata": { "name": name, "resourceVersion": request.metadata.resource_version },
            "status": standing.status(request, self.clock.unix_ms()),
        });
        let api = Api::<ProvisioningRequest>::namespaced(self.client.clone(), &namespace(request));
        let params = PatchParams::apply("comity-agent").force();
        match within_limit(api.patch_status(&name, &params, &Patch::Apply(&apply))).await {
            Ok(_) => Ok(()),
            // It changed meanwhile: its watch brings the next copy.
            Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(format!("its status cannot be written: {error}")),
        }
    }
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

fn uid(request: &ProvisioningRequest) -> String {
    request.metadata.uid.clone().unwrap_or_default()
}

fn namespace(object: &impl kube::Resource) -> String {
    object.meta().namespace.clone().unwrap_or_default()
}
