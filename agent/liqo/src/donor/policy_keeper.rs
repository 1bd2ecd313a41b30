//! Watches the admission policies, writes the grants that they read, and publishes whether they are in force. Otherwise
//! nothing may be lent. The agent has no right to write a policy: the cluster's owner restores one that is missing.

mod seen_objects;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::{FIELD_MANAGER, call, creating};
use comity_agent_kubernetes::object_content::content;
use comity_agent_model::delivery_error::DeliveryError;
use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::grants::Grants;
use super::pace::Pace;
use super::policies::{PART_LABEL, POLICIES_MANIFEST, PolicySettings, grants_object, params_name, policy_objects};
use super::rights::DONOR_MANIFEST;
use seen_objects::{SeenObjects, is_as_wanted, kind, text};

/// API servers look for changed policies once a second, and then compile them.
const TAKES_EFFECT: Duration = Duration::from_secs(3);
const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";
const TERMS: &str = "ConfigMap";

type Health = Result<(), String>;
/// An event of a watch, with the kind of its object.
type WatchEvent = (&'static str, watcher::Result<Event<DynamicObject>>);

/// Policies and bindings of this cluster that are missing, or differ from what these settings need.
///
/// # Errors
/// [`DeliveryError`].
pub async fn missing_policies(client: &Client, settings: &PolicySettings) -> Result<Vec<String>, DeliveryError> {
    let mut seen = SeenObjects::default();
    for kind in [POLICY, BINDING] {
        let objects = Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
        let ours = ListParams::default().labels(&ours());
        for object in call(&format!("list objects of kind {kind}"), objects.list(&ours)).await?.items {
            seen.remember((kind.to_owned(), object.name_any()), version(&object), content(&object));
        }
    }
    Ok(wrong_ones(&seen, &policy_objects(settings)))
}

/// Names of the wanted objects that are not as they should be.
fn wrong_ones(seen: &SeenObjects, wanted: &[Value]) -> Vec<String> {
    wanted.iter().filter(|object| !seen.holds(object)).map(name).collect()
}

/// Selector of the policies and bindings.
fn ours() -> String {
    format!("{}={}", PART_LABEL.0, PART_LABEL.1)
}

/// The task that keeps the policies; ends when this is dropped.
#[derive(Debug)]
pub struct PolicyKeeper {
    health: watch::Receiver<Health>,
    in_force: watch::Receiver<Arc<Grants>>,
    task: JoinHandle<()>,
}

impl PolicyKeeper {
    /// Begins to watch, and to write the grants; `liqo_id` is this cluster's own. `spawn` runs the task, which must
    /// stand still while another replica of the agent may be active.
    #[must_use]
    pub fn start(
        client: Client,
        settings: PolicySettings,
        liqo_id: &str,
        grants: watch::Receiver<Arc<Grants>>,
        spawn: impl FnOnce(BoxFuture<'static, ()>) -> JoinHandle<()>,
    ) -> Self {
        let (publish, health) = watch::channel(Err("the admission policies have not been checked yet".to_owned()));
        let (publish_in_force, in_force) = watch::channel(Arc::default());
        let keeping = Keeping {
            client,
            policies: policy_objects(&settings),
            settings,
            liqo_id: liqo_id.to_owned(),
            publish,
            publish_in_force,
            seen: SeenObjects::default(),
            listed: BTreeSet::new(),
            is_awaited: false,
            in_effect_at: None,
            pace: Pace::default(),
        };
        Self { health, in_force, task: spawn(keeping.follow(grants).boxed()) }
    }

    /// Whether all policies exist, are as wanted and are in effect. Otherwise this cluster offers no virtual nodes.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The grants that the policies admit now: a slice that arrives before its grant is refused, and retried later.
    #[must_use]
    pub fn in_force(&self) -> watch::Receiver<Arc<Grants>> {
        self.in_force.clone()
    }
}

impl Drop for PolicyKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Keeping {
    client: Client,
    settings: PolicySettings,
    liqo_id: String,
    /// Policies and bindings, as they should be.
    policies: Vec<Value>,
    publish: watch::Sender<Health>,
    publish_in_force: watch::Sender<Arc<Grants>>,
    seen: SeenObjects,
    /// Kinds whose list has been read.
    listed: BTreeSet<&'static str>,
    /// Whether a policy was missing or differed when last looked at.
    is_awaited: bool,
    /// When policies that were applied just now take effect.
    in_effect_at: Option<Instant>,
    pace: Pace,
}

impl Keeping {
    async fn follow(mut self, mut grants: watch::Receiver<Arc<Grants>>) {
        let mut events = std::pin::pin!(self.watches());
        let mut retry_at: Option<Instant> = None;
        loop {
            let wake = [retry_at, self.in_effect_at].into_iter().flatten().min();
            tokio::select! {
                event = events.next() => match event {
                    Some((kind, event)) => self.take(kind, event),
                    None => return,
                },
                changed = grants.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
            if self.listed.len() == [POLICY, BINDING, TERMS].len() {
                let now = Arc::clone(&grants.borrow_and_update());
                retry_at = self.settle(&now).await;
            }
        }
    }

    fn watches(&self) -> impl Stream<Item = WatchEvent> + Send + use<> {
        let labels = ours();
        let ours = |kind: &'static str| {
            let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource(kind));
            watcher::watcher(api, watcher::Config::default().labels(&labels))
                .default_backoff()
                .map(move |event| (kind, event))
        };
        let api = Api::namespaced_with(self.client.clone(), &self.settings.agent_namespace, &resource(TERMS));
        let named = watcher::Config::default().fields(&format!("metadata.name={}", params_name()));
        let terms = watcher::watcher(api, named).default_backoff().map(|event| (TERMS, event));
        futures::stream::select(futures::stream::select(ours(POLICY), ours(BINDING)), terms)
    }

    fn take(&mut self, kind: &'static str, event: watcher::Result<Event<DynamicObject>>) {
        match event {
            Ok(Event::Init) => {
                self.listed.remove(kind);
                self.seen.forget_kind(kind);
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                self.seen.remember((kind.to_owned(), object.name_any()), version(&object), content(&object));
            }
            Ok(Event::InitDone) => {
                self.listed.insert(kind);
            }
            Ok(Event::Delete(object)) => {
                self.seen.forget(&(kind.to_owned(), object.name_any()));
            }
            Err(error) => {
                tracing::warn!(kind, %error, "a watch of the admission policies failed and restarts");
                if self.publish.borrow().is_err() {
                    let text = format!("cannot watch {kind}: {error}; apply {DONOR_MANIFEST}");
                    self.publish.send_modify(|health| *health = Err(text));
                }
            }
        }
    }

    /// Compares, logs differences, and writes the grants. Returns the time of the next attempt, if one is needed.
    async fn settle(&mut self, grants: &Grants) -> Option<Instant> {
        let wrong = wrong_ones(&self.seen, &self.policies);
        if !wrong.is_empty() {
            (self.is_awaited, self.in_effect_at) = (true, None);
            self.report_unhealthy(format!(
                "missing or different: {}; as this cluster's owner run kubectl apply, and kubectl replace, -f \
                 {POLICIES_MANIFEST}: the agent may not write policies",
                wrong.join(", ")
            ));
        } else if std::mem::take(&mut self.is_awaited) {
            self.in_effect_at = Some(Instant::now() + TAKES_EFFECT);
        }
        let terms = grants_object(&self.settings, &self.liqo_id, grants);
        self.seen.note_agreement(&terms);
        if !self.seen.holds(&terms) {
            let is_altered = !self.seen.is_our_own_change(&terms);
            if let Some(due) = self.pace.due().filter(|due| is_altered && *due > Instant::now()) {
                return Some(due);
            }
            if is_altered {
                tracing::warn!(
                    name = params_name(),
                    "the ConfigMap of the grants is missing or altered; it is written"
                );
                self.pace.attempt(Instant::now());
            }
            if let Err(error) = self.write(&terms).await {
                self.report_unhealthy(format!("cannot write {}: {error}; apply {DONOR_MANIFEST}", name(&terms)));
                self.pace.attempt(Instant::now());
                return self.pace.due();
            }
        }
        if wrong.is_empty() {
            self.report_healthy(grants);
        }
        None
    }

    fn report_unhealthy(&self, text: String) {
        if *self.publish.borrow() != Err(text.clone()) {
            tracing::error!(
                reason = text,
                "the admission policies are not in force; nothing is lent through Liqo until they are"
            );
            self.publish.send_modify(|health| *health = Err(text));
        }
    }

    fn report_healthy(&mut self, grants: &Grants) {
        if self.in_effect_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.in_effect_at = None;
        self.publish.send_if_modified(|health| {
            let changed = health.is_err();
            *health = Ok(());
            changed
        });
        self.publish_in_force.send_if_modified(|before| {
            let first = grants.0.iter().take(super::grants::MAX_GRANTS);
            let changed = !before.0.iter().eq(first.clone());
            if changed {
                let now = first.map(|(slice, grant)| (slice.clone(), grant.clone())).collect();
                *before = Arc::new(Grants(now));
            }
            changed
        });
    }

    /// Applies the object; replaces it if fields that somebody else added remain.
    async fn write(&mut self, wanted: &Value) -> Result<(), CallError> {
        let namespace = &self.settings.agent_namespace;
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource(TERMS));
        let name = text(wanted, "/metadata/name");
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let mut written = within_limit(api.patch(name, &parameters, &Patch::Apply(wanted))).await?;
        if !is_as_wanted(&content(&written), wanted) {
            let mut whole: DynamicObject =
                serde_json::from_value(wanted.clone()).map_err(|error| CallError::Connection(error.to_string()))?;
            whole.metadata.resource_version = written.resource_version();
            let parameters = creating();
            written = within_limit(api.replace(name, &parameters, &whole)).await?;
        }
        tracing::info!(name, "wrote the grants of the admission policies");
        self.seen.note_write(wanted, version(&written), content(&written));
        Ok(())
    }
}

fn version(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn resource(kind: &str) -> ApiResource {
    let (group, plural) = match kind {
        TERMS => ("", "configmaps"),
        POLICY => ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        _ => ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

fn name(object: &Value) -> String {
    format!("{} {}", kind(object), text(object, "/metadata/name"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server with these policies and bindings.
    fn client(objects: Vec<Value>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_of_bindings = request.uri().path().ends_with("bindings");
            let kind = if is_of_bindings { BINDING } else { POLICY };
            let found = objects.iter().filter(|object| text(object, "/kind") == kind);
            let list = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}List"), "metadata": {},
                "items": found.collect::<Vec<_>>(),
            });
            let answer = Response::builder().body(Body::from(list.to_string().into_bytes()));
            async move { answer.map_err(std::io::Error::other) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn the_owner_is_told_which_policy_is_missing_older_or_changed() {
        let settings = PolicySettings::default();
        let missing = async |objects: Vec<Value>| missing_policies(&client(objects), &settings).await.unwrap();
        let shipped = policy_objects(&settings);
        assert!(missing(shipped.clone()).await.is_empty());
        assert_eq!(missing(Vec::new()).await.len(), shipped.len());
        let others = PolicySettings { same_names: true, ..PolicySettings::default() };
        let changed = ["namespacemap", "shadowpod"].map(|name| format!("ValidatingAdmissionPolicy comity-liqo-{name}"));
        assert_eq!(missing(policy_objects(&others)).await, changed);
        for (at, path, value) in [
            (0, "/spec/failurePolicy", json!("Ignore")),
            (0, "/spec/validations/0/expression", json!("true")),
            (0, "/spec/matchConditions/0/expression", json!("false")),
            (1, "/spec/validationActions", json!(["Audit"])),
            (1, "/spec/policyName", json!("another")),
        ] {
            let mut changed = shipped.clone();
            *changed[at].pointer_mut(path).unwrap() = value;
            assert_eq!(missing(changed).await, [name(&shipped[at])], "{path}");
        }
    }
}
