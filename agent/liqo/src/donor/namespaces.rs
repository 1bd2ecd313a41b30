//! Sets Pod Security levels, and the donor's labels, on consumers' remote namespaces, after it has limited what their pods
//! reach: Liqo makes the namespaces without, and the policies admit no pods until there is a level.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::{FIELD_MANAGER, patching};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::local_policy::GuestEgress;
use futures::StreamExt as _;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Config, Controller, Error};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::guest_network::{POLICY_NAME, PeerNetworks, network_policy, remapped_ranges};
use crate::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL, configuration, tenant_namespace_of};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Accepted Pod Security levels.
const LEVELS: [&str; 2] = ["baseline", "restricted"];
/// Pause before a namespace is tried again: it takes no pods meanwhile.
const LABEL_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a labelled namespace is looked at again: Liqo may have remapped a network meanwhile, or somebody may have
/// removed the policy.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Namespaces that are labelled at the same time.
const MAX_CONCURRENT_LABELS: u16 = 8;
/// Key of the watch in the log of failures; no namespace has this name.
const WATCH: &str = "";

/// What the donor decides about consumers' namespaces.
#[derive(Clone, Debug)]
pub struct GuestNamespaces {
    /// Labels besides the Pod Security level.
    pub labels: GuestLabels,
    /// Networks that pods reach, and do not.
    pub egress: GuestEgress,
    /// Networks of consumers' own pods; `None` until the agent has read them: nothing is changed then.
    pub networks: watch::Receiver<Option<Arc<PeerNetworks>>>,
    /// Whether Liqo's own network carries pods. Its Configurations then have further networks.
    pub has_liqo_network: bool,
}

/// Labels remote namespaces, and limits what their pods reach.
#[derive(Debug)]
pub struct NamespaceKeeper;

impl NamespaceKeeper {
    /// Runs forever. A namespace without a label admits no pods, so nothing else depends on this task.
    pub async fn run(client: Client, guests: GuestNamespaces) {
        let seen = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
        let selector = watcher::Config::default().labels(REMOTE_CLUSTER_LABEL);
        let mut results = Controller::new(seen, selector)
            .with_config(Config::default().concurrency(MAX_CONCURRENT_LABELS))
            .reconcile_all_on(changes(guests.networks.clone()))
            .run(
                settle,
                |_, _, _| Action::requeue(LABEL_RETRY_INTERVAL),
                Arc::new(Labeller { namespaces: Api::all(client.clone()), client, guests }),
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
                        tracing::warn!(namespace, %error, "cannot prepare a remote namespace; it takes no pods");
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

/// An item for each change of the networks.
fn changes<T: Send + Sync + 'static>(networks: watch::Receiver<T>) -> impl futures::Stream<Item = ()> + Send {
    futures::stream::unfold(networks, |mut networks| async move {
        networks.changed().await.ok()?;
        Some(((), networks))
    })
}

struct Labeller {
    client: Client,
    namespaces: Api<Namespace>,
    guests: GuestNamespaces,
}

impl Labeller {
    /// The labels that a remote namespace lacks, in one change: the level admits pods, so no pod starts without the
    /// others.
    fn missing(&self, namespace: &PartialObjectMeta<Namespace>) -> BTreeMap<&'static str, &str> {
        let labels = namespace.labels();
        if !takes_pods(namespace) {
            return BTreeMap::new();
        }
        let value = |key: &str| labels.get(key).map(String::as_str);
        let level = (!value(ENFORCE).is_some_and(|level| LEVELS.contains(&level))).then_some((ENFORCE, LEVELS[0]));
        let others = self.guests.labels.labels().into_iter().filter(|(label, wanted)| value(label) != Some(wanted));
        let switches = self.guests.labels.switches().into_iter();
        let outdated =
            switches.filter(|(label, on)| !on && value(label) == Some("true")).map(|(label, _)| (label, "false"));
        level.into_iter().chain(others).chain(outdated).collect()
    }
}

/// Whether pods of a consumer may be here.
fn takes_pods(namespace: &PartialObjectMeta<Namespace>) -> bool {
    !namespace.labels().contains_key(TENANT_NAMESPACE_LABEL) && namespace.metadata.deletion_timestamp.is_none()
}

impl Labeller {
    /// Limits what the namespace's pods reach.
    async fn limit(&self, namespace: &PartialObjectMeta<Namespace>, networks: &PeerNetworks) -> Result<(), CallError> {
        let Some(consumer) = namespace.labels().get(REMOTE_CLUSTER_LABEL).filter(|_| takes_pods(namespace)) else {
            return Ok(());
        };
        let mut its_networks: BTreeSet<Ipv4Net> = networks.get(consumer).cloned().unwrap_or_default();
        if self.guests.has_liqo_network {
            its_networks.extend(self.remapped(consumer).await?);
        }
        let name = namespace.name_any();
        let policy = network_policy(&name, consumer, &its_networks, &self.guests.egress);
        let policies = Api::<NetworkPolicy>::namespaced(self.client.clone(), &name);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        within_limit(policies.patch(POLICY_NAME, &parameters, &Patch::Apply(&policy))).await.map(drop)
    }

    /// Networks at which Liqo shows the consumer's pods, once it has chosen them.
    async fn remapped(&self, consumer: &str) -> Result<BTreeSet<Ipv4Net>, CallError> {
        let (namespace, kind) = (tenant_namespace_of(consumer), configuration());
        let configurations = Api::<DynamicObject>::namespaced_with(self.client.clone(), &namespace, &kind);
        match within_limit(configurations.get(consumer)).await {
            Ok(configuration) => Ok(remapped_ranges(&configuration)),
            Err(CallError::Status(status)) if status.is_not_found() => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }
}

/// Limits what pods reach, and then lets pods in.
async fn settle(namespace: Arc<PartialObjectMeta<Namespace>>, labeller: Arc<Labeller>) -> Result<Action, CallError> {
    let networks = labeller.guests.networks.borrow().clone();
    let Some(networks) = networks else { return Ok(Action::requeue(LABEL_RETRY_INTERVAL)) };
    labeller.limit(&namespace, &networks).await?;
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
    Ok(Action::requeue(RECHECK_INTERVAL))
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
                    match name.as_str() {
                        POLICY_NAME => json!({
                            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name },
                        }),
                        _ => json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
                    }
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
                        "items": [
                            item("bare", json!({ REMOTE_CLUSTER_LABEL: "campus" })), item("done", json!({ ENFORCE: "restricted" })),
                        ]
                    })
                };
                let code = if fails { 500 } else { 200 };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                answer.map_err(std::io::Error::other)
            }
        });
        Client::new(service, "default")
    }

    fn guests(labels: GuestLabels) -> GuestNamespaces {
        let (_, networks) = watch::channel(Some(Arc::default()));
        GuestNamespaces { labels, egress: GuestEgress::default(), networks, has_liqo_network: false }
    }

    #[tokio::test]
    async fn a_namespace_is_limited_then_labelled_and_a_failure_repeated() {
        let (sender, mut patches) = mpsc::unbounded_channel();
        let (publish, networks) = watch::channel(None);
        let guests = GuestNamespaces { networks, ..guests(GuestLabels::default()) };
        let keeper = tokio::spawn(NamespaceKeeper::run(client(sender), guests));
        let mut next = async || tokio::time::timeout(Duration::from_secs(20), patches.recv()).await.unwrap().unwrap();
        tokio::time::sleep(LABEL_RETRY_INTERVAL).await;
        publish.send_replace(Some(Arc::default()));
        // The first one fails. No pod is let in before the policy is there.
        for _ in 0..2 {
            let (name, policy) = next().await;
            assert_eq!((name.as_str(), &policy["metadata"]["namespace"]), (POLICY_NAME, &json!("bare")));
        }
        let (name, patch) = next().await;
        assert_eq!((name.as_str(), &patch["metadata"]["labels"][ENFORCE]), ("bare", &json!("baseline")));
        let mut networks = PeerNetworks::new();
        networks.insert("campus".to_owned(), BTreeSet::from(["10.44.0.0/16".parse().unwrap()]));
        publish.send_replace(Some(networks.into()));
        let (name, policy) = next().await;
        assert_eq!(name, POLICY_NAME, "its own networks have changed");
        assert!(policy["spec"]["egress"][0].to_string().contains("10.44.0.0/16"), "{policy}");
        keeper.abort();
    }

    #[tokio::test]
    async fn the_runtime_class_is_set_wherever_it_differs() {
        let labeller = |class: Option<&str>| Labeller {
            namespaces: Api::all(client(mpsc::unbounded_channel().0)),
            client: client(mpsc::unbounded_channel().0),
            guests: guests(GuestLabels { runtime_class: class.map(str::to_owned), ..GuestLabels::default() }),
        };
        let namespace = |labels: Value| -> PartialObjectMeta<Namespace> {
            serde_json::from_value(json!({ "metadata": { "name": "guest", "labels": labels } })).unwrap()
        };
        let labelled = namespace(json!({ ENFORCE: "baseline", RUNTIME_CLASS_LABEL: "runc" }));
        assert_eq!(labeller(Some("gvisor")).missing(&labelled), BTreeMap::from([(RUNTIME_CLASS_LABEL, "gvisor")]));
        assert!(labeller(Some("runc")).missing(&labelled).is_empty() && labeller(None).missing(&labelled).is_empty());
        let void = namespace(json!({ ENFORCE: "baseline", VOID_DEVICES_LABEL: "true" }));
        assert_eq!(labeller(None).missing(&void), BTreeMap::from([(VOID_DEVICES_LABEL, "false")]));
        let pulls =
            Labeller { guests: guests(GuestLabels { always_pull: true, ..GuestLabels::default() }), ..labeller(None) };
        let expected = BTreeMap::from([(VOID_DEVICES_LABEL, "false"), (ALWAYS_PULL_LABEL, "true")]);
        assert_eq!(pulls.missing(&void), expected);
        let bare = namespace(json!({}));
        assert_eq!(labeller(Some("gvisor")).missing(&bare).len(), 2);
        let tenant = namespace(json!({ TENANT_NAMESPACE_LABEL: "true" }));
        assert!(labeller(Some("gvisor")).missing(&tenant).is_empty());
    }
}
