//! Sets Pod Security levels, and the donor's RuntimeClass, on consumers' remote namespaces: Liqo makes them without, and
//! the policies admit no pods until there is a level.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::patching;
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_model::guest_labels::GuestLabels;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Patch;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Config, Controller, Error};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Accepted Pod Security levels.
const LEVELS: [&str; 2] = ["baseline", "restricted"];
/// Pause before a namespace is tried again: it takes no pods meanwhile.
const LABEL_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Namespaces that are labelled at the same time.
const MAX_CONCURRENT_LABELS: u16 = 8;
/// Key of the watch in the log of failures; no namespace has this name.
const WATCH: &str = "";

/// Labels remote namespaces.
#[derive(Debug)]
pub struct NamespaceKeeper;

impl NamespaceKeeper {
    /// Runs forever. A namespace without a label admits no pods, so nothing else depends on this task.
    ///
    /// Besides the Pod Security level, it sets the labels `guests`.
    pub async fn run(client: Client, guests: GuestLabels) {
        let seen = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
        let selector = watcher::Config::default().labels(REMOTE_CLUSTER_LABEL);
        let mut results = Controller::new(seen, selector)
            .with_config(Config::default().concurrency(MAX_CONCURRENT_LABELS))
            .run(
                label,
                |_, _, _| Action::requeue(LABEL_RETRY_INTERVAL),
                Arc::new(Labeller { namespaces: Api::all(client), guests }),
            )
            .boxed();
        let mut failures = FailureLog::default();
        while let Some(result) = results.next().await {
            match result {
                Ok((namespace, _)) => {
                    failures.cleared(&namespace.name);
                    failures.cleared(WATCH);
                }
                Err(Error::ReconcilerFailed(error, namespace)) => {
                    if failures.is_new(&namespace.name, &error.to_string()) {
                        let namespace = namespace.name;
                        tracing::warn!(namespace, %error, "cannot label a remote namespace; it takes no pods");
                    }
                }
                // It was deleted meanwhile.
                Err(Error::ObjectNotFound(_)) => {}
                Err(error) => {
                    if failures.is_new(WATCH, &error.to_string()) {
                        tracing::warn!(%error, "the watch of remote namespaces failed and restarts");
                    }
                }
            }
        }
    }
}

struct Labeller {
    namespaces: Api<Namespace>,
    guests: GuestLabels,
}

impl Labeller {
    /// The labels that a remote namespace lacks, in one change: the level admits pods, so no pod starts without the
    /// others.
    fn missing(&self, namespace: &PartialObjectMeta<Namespace>) -> BTreeMap<&'static str, &str> {
        let labels = namespace.labels();
        if labels.contains_key(TENANT_NAMESPACE_LABEL) || namespace.metadata.deletion_timestamp.is_some() {
            return BTreeMap::new();
        }
        let value = |key: &str| labels.get(key).map(String::as_str);
        let level = (!value(ENFORCE).is_some_and(|level| LEVELS.contains(&level))).then_some((ENFORCE, LEVELS[0]));
        let others = self.guests.labels().into_iter().filter(|(label, wanted)| value(label) != Some(wanted));
        let switches = self.guests.switches().into_iter();
        let outdated =
            switches.filter(|(label, on)| !on && value(label) == Some("true")).map(|(label, _)| (label, "false"));
        level.into_iter().chain(others).chain(outdated).collect()
    }
}

async fn label(namespace: Arc<PartialObjectMeta<Namespace>>, labeller: Arc<Labeller>) -> Result<Action, CallError> {
    let missing = labeller.missing(&namespace);
    if !missing.is_empty() {
        let name = namespace.name_any();
        let labels = json!({ "metadata": { "labels": missing } });
        match within_limit(labeller.namespaces.patch(&name, &patching(), &Patch::Merge(&labels))).await {
            Ok(_) => tracing::info!(namespace = name, ?missing, "labelled a remote namespace"),
            Err(CallError::Status(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Action::await_change())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::guest_labels::{ALWAYS_PULL_LABEL, RUNTIME_CLASS_LABEL, VOID_DEVICES_LABEL};
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;

    /// An API server with two remote namespaces, one of them labelled. Its first answer to a patch is an error.
    fn client(patches: mpsc::UnboundedSender<(String, Value)>) -> Client {
        let mut failed = false;
        let service = tower::service_fn(move |request: Request<Body>| {
            let patches = patches.clone();
            let is_patch = request.method() == Method::PATCH;
            let fails = is_patch && !failed;
            failed |= fails;
            async move {
                let (head, body) = request.into_parts();
                if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
                    return std::future::pending().await;
                }
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                let answer = if is_patch {
                    let name = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                    patches.send((name.clone(), serde_json::from_slice(&body)?)).map_err(std::io::Error::other)?;
                    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
                } else {
                    let item = |name: &str, labels: Value| {
                        json!({
                            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                            "metadata": { "name": name, "labels": labels }
                        })
                    };
                    json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                        "metadata": { "resourceVersion": "7" },
                        "items": [item("bare", json!({})), item("done", json!({ ENFORCE: "restricted" }))]
                    })
                };
                let code = if fails { 500 } else { 200 };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                answer.map_err(std::io::Error::other)
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_namespace_without_a_level_is_labelled_and_a_failure_repeated() {
        let (sender, mut patches) = mpsc::unbounded_channel();
        let keeper = tokio::spawn(NamespaceKeeper::run(client(sender), GuestLabels::default()));
        for _ in 0..2 {
            let (name, patch) = tokio::time::timeout(Duration::from_secs(20), patches.recv()).await.unwrap().unwrap();
            assert_eq!((name.as_str(), &patch["metadata"]["labels"][ENFORCE]), ("bare", &json!("baseline")));
        }
        assert!(
            tokio::time::timeout(LABEL_RETRY_INTERVAL * 2, patches.recv()).await.is_err(),
            "once it is labelled it is left alone"
        );
        keeper.abort();
    }

    #[tokio::test]
    async fn the_runtime_class_is_set_wherever_it_differs() {
        let labeller = |class: Option<&str>| Labeller {
            namespaces: Api::all(client(mpsc::unbounded_channel().0)),
            guests: GuestLabels { runtime_class: class.map(str::to_owned), ..GuestLabels::default() },
        };
        let namespace = |labels: Value| -> PartialObjectMeta<Namespace> {
            serde_json::from_value(json!({ "metadata": { "name": "guest", "labels": labels } })).unwrap()
        };
        let labelled = namespace(json!({ ENFORCE: "baseline", RUNTIME_CLASS_LABEL: "runc" }));
        assert_eq!(labeller(Some("gvisor")).missing(&labelled), BTreeMap::from([(RUNTIME_CLASS_LABEL, "gvisor")]));
        assert!(labeller(Some("runc")).missing(&labelled).is_empty() && labeller(None).missing(&labelled).is_empty());
        let void = namespace(json!({ ENFORCE: "baseline", VOID_DEVICES_LABEL: "true" }));
        assert_eq!(labeller(None).missing(&void), BTreeMap::from([(VOID_DEVICES_LABEL, "false")]));
        let pulls = Labeller { guests: GuestLabels { always_pull: true, ..GuestLabels::default() }, ..labeller(None) };
        let expected = BTreeMap::from([(VOID_DEVICES_LABEL, "false"), (ALWAYS_PULL_LABEL, "true")]);
        assert_eq!(pulls.missing(&void), expected);
        let bare = namespace(json!({}));
        assert_eq!(labeller(Some("gvisor")).missing(&bare).len(), 2);
        let tenant = namespace(json!({ TENANT_NAMESPACE_LABEL: "true" }));
        assert!(labeller(Some("gvisor")).missing(&tenant).is_empty());
    }
}
