//! Pods that the agent runs in a namespace of its own: placeholders, canaries, and cleaning pods.
//!
//! A manifest of `deploy/agent/` makes each namespace, with the agent's rights there and a policy that restricts the
//! pods.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::api::{CallError, within_limit};
use crate::call::creating;
use crate::failure_log::FailureLog;

/// A namespace of the agent's own pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNamespace {
    /// Its name.
    pub name: &'static str,
    /// The manifest that makes it.
    pub manifest: &'static str,
}

impl PodNamespace {
    /// The pods there.
    #[must_use]
    pub fn pods(self, client: Client) -> Api<Pod> {
        Api::namespaced(client, self.name)
    }

    /// Removes all pods of an agent whose configuration had them before.
    pub async fn clear(self, client: Client) {
        let pods = self.pods(client);
        // Without the rights of the manifest there never were any.
        let Ok(left) = within_limit(pods.list_metadata(&ListParams::default())).await else { return };
        for pod in left.items {
            if let Err(error) = within_limit(pods.delete(&pod.name_any(), &at_once(pod.uid()))).await {
                let (namespace, pod) = (self.name, pod.name_any());
                tracing::warn!(namespace, pod, %error, "cannot delete a pod of an earlier setting");
            }
        }
    }
}

/// Deletes without a grace period, and only the pod with this uid.
#[must_use]
pub fn at_once(uid: Option<String>) -> DeleteParams {
    DeleteParams::default().grace_period(0).preconditions(Preconditions { uid, resource_version: None })
}

/// Makes and deletes pods in such a namespace. Each failure is logged once.
#[derive(Debug)]
pub struct OwnPods {
    pods: Api<Pod>,
    place: PodNamespace,
    /// What the log says while calls fail.
    effect: &'static str,
    failures: FailureLog,
}

impl OwnPods {
    /// The pods in `place`; while calls fail, the log says `effect`.
    #[must_use]
    pub fn new(client: Client, place: PodNamespace, effect: &'static str) -> Self {
        Self { pods: place.pods(client), place, effect, failures: FailureLog::default() }
    }

    /// Changes of the pods.
    #[must_use]
    pub fn events(&self) -> BoxStream<'static, watcher::Result<Event<Pod>>> {
        watcher(self.pods.clone(), watcher::Config::default()).default_backoff().boxed()
    }

    /// Makes a pod, unless one of its name is there. Returns why there is none.
    pub async fn make(&mut self, pod: Result<Pod, serde_json::Error>) -> Option<String> {
        const WHAT: &str = "make a pod";
        let reason = match pod {
            Ok(pod) => match within_limit(self.pods.create(&creating(), &pod)).await {
                Err(CallError::Status(status)) if status.code == 409 => return None,
                Err(error) => error.to_string(),
                Ok(_) => {
                    self.failures.cleared(WHAT);
                    return None;
                }
            },
            Err(error) => error.to_string(),
        };
        self.failed(WHAT, &reason);
        Some(reason)
    }

    /// Deletes a pod.
    pub async fn delete(&mut self, name: &str, uid: &str) {
        let deleted = within_limit(self.pods.delete(name, &at_once(Some(uid.to_owned())))).await;
        self.note("delete a pod", deleted.map(drop));
    }

    /// Logs the failure of a call, unless the API server says that it is done already.
    pub fn note(&mut self, what: &str, result: Result<(), CallError>) {
        match result {
            Ok(()) => self.failures.cleared(what),
            Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => self.failed(what, &error.to_string()),
        }
    }

    /// Logs a failure once.
    pub fn failed(&mut self, what: &str, error: &str) {
        if self.failures.is_new(what, error) {
            let (namespace, effect, manifest) = (self.place.name, self.effect, self.place.manifest);
            tracing::warn!(
                namespace,
                what,
                error,
                "{effect}; if rights or the namespace are missing, apply {manifest}"
            );
        }
    }
}

/// The common part of the specs of pods on one node: one container, without a token, privileges or grace.
#[must_use]
pub fn restricted_spec(node: &str, mut container: Value) -> Value {
    container["securityContext"] = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let here = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] }]);
    json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 0,
        "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": here },
        } },
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65535, "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
    })
}
