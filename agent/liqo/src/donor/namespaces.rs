//! Sets Pod Security levels on consumers' remote namespaces: Liqo makes them without one, and the policies admit no
//! pods until there is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::call::patching;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Patch;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::{REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Levels that are enough.
const LEVELS: [&str; 2] = ["baseline", "restricted"];
/// How often a namespace is tried before the next change of it is waited for.
const TRIES: u32 = 5;
const RETRY: Duration = Duration::from_millis(200);

/// Labels remote namespaces.
#[derive(Debug)]
pub struct NamespaceKeeper;

impl NamespaceKeeper {
    /// Runs forever. A namespace without a label admits no pods, so nothing else depends on this task.
    pub async fn run(client: Client) {
        let namespaces = Api::<Namespace>::all(client.clone());
        let seen = Api::<PartialObjectMeta<Namespace>>::all(client);
        let selector = watcher::Config::default().labels(REMOTE_CLUSTER_LABEL);
        let mut events = std::pin::pin!(watcher::watcher(seen, selector).default_backoff());
        let warned = AtomicBool::new(false);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::InitApply(namespace) | Event::Apply(namespace)) if needs_label(&namespace) => {
                    label(&namespaces, &namespace.name_any()).await;
                }
                Ok(_) => warned.store(false, Ordering::Relaxed),
                Err(error) if !warned.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(%error, "the watch of remote namespaces failed and is begun again");
                }
                Err(_) => {}
            }
        }
    }
}

fn needs_label(namespace: &PartialObjectMeta<Namespace>) -> bool {
    let labels = namespace.labels();
    let is_tenant = labels.contains_key(TENANT_NAMESPACE_LABEL);
    let level = labels.get(ENFORCE).map(String::as_str).unwrap_or_default();
    !is_tenant && namespace.metadata.deletion_timestamp.is_none() && !LEVELS.contains(&level)
}

async fn label(namespaces: &Api<Namespace>, name: &str) {
    let labels = json!({ "metadata": { "labels": { ENFORCE: LEVELS[0] } } });
    let parameters = patching();
    for attempt in 1..=TRIES {
        match within_limit(namespaces.patch(name, &parameters, &Patch::Merge(&labels))).await {
            Ok(_) => return tracing::info!(namespace = name, "put a remote namespace under Pod Security baseline"),
            Err(error) => {
                tracing::warn!(namespace = name, attempt, %error, "cannot label a remote namespace; it takes no pods")
            }
        }
        tokio::time::sleep(RETRY * attempt).await;
    }
}
