//! Deletes the shadows of finished pods at their donors. The pods of this cluster stay, and with them Jobs' histories.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::{call, call_opt};
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::delivery_error::DeliveryError;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

use super::TendSettings;
use super::finished::{PODS, PodFacts, due};
use super::nodes::Nodes;
use crate::origin::LiqoOrigin;
use crate::{namespace_map, shadow_pod, tenant_namespace_of};

/// Liqo's label of this cluster's pods that run elsewhere.
const OFFLOADED: &str = "liqo.io/shadowPod=true";
/// Interval of the age checks; a share that is needed is freed at once.
const AGE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Pause before the next attempt for the same pod.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time limit of one pod.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pods that are released at the same time.
const MAX_CONCURRENT_RELEASES: usize = 8;

/// Releases finished pods as they are due.
pub(super) async fn run(origin: LiqoOrigin, settings: TendSettings, mut nodes: watch::Receiver<Arc<Nodes>>) {
    let pods = Api::<Pod>::all(origin.client.clone());
    let config = watcher::Config::default().labels(OFFLOADED);
    let mut events = pin!(watcher(pods, config).default_backoff());
    let mut mirror = WatchCache::default();
    let mut released: BTreeSet<String> = BTreeSet::new();
    let mut failed: BTreeMap<String, Instant> = BTreeMap::new();
    let mut tick = tokio::time::interval(AGE_CHECK_INTERVAL);
    let keep = i64::try_from(settings.keep_finished.as_secs()).unwrap_or(i64::MAX);
    loop {
        let changed = tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => mirror.take(event, |pod| Some((key(pod), facts(pod)))),
                Some(Err(error)) => {
                    tracing::debug!(%error, "the watch of offloaded pods broke; it restarts");
                    false
                }
                None => return,
            },
            changed = nodes.changed() => {
                if changed.is_err() {
                    return;
                }
                nodes.mark_unchanged();
                true
            }
            _ = tick.tick() => true,
        };
        if !changed || !mirror.is_complete() {
            continue;
        }
        let known: BTreeSet<&str> = mirror.facts().map(|pod: &PodFacts| pod.uid.as_str()).collect();
        released.retain(|uid| known.contains(uid.as_str()));
        failed.retain(|uid, at| known.contains(uid.as_str()) && at.elapsed() < RETRY_AFTER);
        let now = Timestamp::now().as_second();
        let here = Arc::clone(&nodes.borrow());
        let due = due(mirror.facts(), &here, now, keep, |uid| released.contains(uid));
        let due: Vec<PodFacts> = due.into_iter().filter(|pod| !failed.contains_key(&pod.uid)).collect();
        let outcomes = futures::stream::iter(due.into_iter().map(|pod| {
            let donor = here.get(&pod.node).map(|node| node.donor.clone()).unwrap_or_default();
            let origin = &origin;
            async move {
                let released = tokio::time::timeout(RELEASE_TIMEOUT, origin.release(&pod, &donor)).await;
                let outcome = released.unwrap_or_else(|_| {
                    Err(DeliveryError::temporary(
                        format!("release pod {}", pod.name),
                        format!("not done after {RELEASE_TIMEOUT:?}"),
                    ))
                });
                (pod, outcome)
            }
        }))
        .buffer_unordered(MAX_CONCURRENT_RELEASES)
        .collect::<Vec<_>>()
        .await;
        for (pod, outcome) in outcomes {
            match outcome {
                Ok(true) => {
                    tracing::info!(
                        namespace = pod.namespace,
                        pod = pod.name,
                        node = pod.node,
                        "a finished pod's share is free"
                    );
                    released.insert(pod.uid);
                }
                Ok(false) => {
                    failed.insert(pod.uid, Instant::now());
                }
                Err(error) => {
                    tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "a finished pod keeps its share");
                    failed.insert(pod.uid, Instant::now());
                }
            }
        }
    }
}

impl LiqoOrigin {
    /// Deletes the shadow of a finished pod; false unless both sides report that it finished.
    async fn release(&self, pod: &PodFacts, donor: &str) -> Result<bool, DeliveryError> {
        let operation = format!("release pod {}/{} at {donor}", pod.namespace, pod.name);
        let Some(remote) = self.remote_namespace(&pod.namespace, donor).await? else { return Ok(true) };
        let client = self.donor_api(&pod.node, donor).await?;
        let shadows = Api::namespaced_with(client.clone(), &remote, &shadow_pod());
        let found: Option<kube::core::DynamicObject> = call_opt(&operation, shadows.get(&pod.name)).await?;
        let Some(shadow) = found else { return Ok(true) };
        // Liqo would change or recreate the shadow of a pod that it does not count as finished on both sides.
        let there = call_opt(&operation, Api::<Pod>::namespaced(client, &remote).get(&pod.name)).await?;
        if there.is_some_and(|there| phase(&there) != pod.outcome) {
            return Ok(false);
        }
        // Read after the shadow: while this very pod exists and is finished, the shadow cannot be that of a later pod
        // of its name.
        let here =
            call_opt(&operation, Api::<Pod>::namespaced(self.client.clone(), &pod.namespace).get(&pod.name)).await?;
        if here.is_none_or(|here| here.uid().as_ref() != Some(&pod.uid) || phase(&here) != pod.outcome) {
            return Ok(false);
        }
        let preconditions = Preconditions { uid: shadow.uid(), resource_version: None };
        let parameters = DeleteParams::background().preconditions(preconditions);
        call_opt(&operation, shadows.delete(&pod.name, &parameters)).await?;
        Ok(true)
    }

    /// The donor's name of a namespace of this cluster; `None` if it does not exist there.
    async fn remote_namespace(&self, namespace: &str, donor: &str) -> Result<Option<String>, DeliveryError> {
        let maps = self.namespaced(&tenant_namespace_of(donor), &namespace_map());
        let operation = format!("read NamespaceMap {donor}");
        let map = call(&operation, maps.get(donor)).await?;
        let remote = &map.data["status"]["currentMapping"][namespace]["remoteNamespace"];
        Ok(remote.as_str().map(str::to_owned))
    }
}

fn key(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// `None` for a pod that has no node yet, or is being deleted: Liqo then deletes its shadow by itself.
fn facts(pod: &Pod) -> Option<PodFacts> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let outcome = Some(phase(pod)).filter(|phase| matches!(*phase, "Succeeded" | "Failed")).unwrap_or_default();
    let mut requests = effective_request(pod);
    requests.insert(PODS.to_owned(), 1);
    Some(PodFacts {
        namespace: pod.namespace()?,
        name: pod.name_any(),
        uid: pod.uid()?,
        node,
        requests,
        outcome: outcome.to_owned(),
        finished: if outcome.is_empty() { 0 } else { finished(pod) },
    })
}

/// When the last container ended; for a pod that never had one, its creation time.
fn finished(pod: &Pod) -> i64 {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let ended = containers
        .iter()
        .filter_map(|container| Some(container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0));
    let made = pod.metadata.creation_timestamp.as_ref().map(|made| made.0);
    ended.max().or(made).map_or(0, |time| time.as_second())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value, status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "train-1", "namespace": "team-a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn facts_of_a_finished_pod_have_its_requests_and_its_end() {
        let spec = json!({ "nodeName": "lease-7", "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "2" } } }] });
        let ended = json!({ "phase": "Failed", "containerStatuses": [
            { "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
              "state": { "terminated": { "exitCode": 1, "finishedAt": "2026-01-01T00:01:00Z" } } },
        ] });
        let known = facts(&pod(spec.clone(), ended)).unwrap();
        assert_eq!((known.outcome.as_str(), known.requests["nvidia.com/gpu"], known.requests[PODS]), ("Failed", 2, 1));
        let unknown_end = facts(&pod(spec.clone(), json!({ "phase": "Succeeded" }))).unwrap();
        assert_eq!(known.finished - unknown_end.finished, 60);
        assert_eq!(facts(&pod(spec, json!({ "phase": "Running" }))).unwrap().outcome, "");
        assert!(facts(&pod(json!({ "containers": [] }), json!({}))).is_none());
    }
}
