//! Corrects drift: evicts pods of leases that run where their lease was not placed, or hold more than was placed there.
//!
//! A pod is evicted once it was seen for five seconds, and only if the API server still shows it on that node. An event
//! on the pod says why. A PodDisruptionBudget may delay the eviction, and not prevent it. A pod that already ends by a
//! longer grace period of its own gets the shorter one.

mod corrections;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::object_events::{pod_reference, publish_event};
use comity_runtime::Clock;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::observe::{DriftedPod, LeaseDifferences};
use corrections::{Correction, Corrections, Means, Outcome};

/// Reason of the events.
pub const DRIFT_REASON: &str = "ComityLeaseDrift";
/// How often drifted pods are looked at again.
const DRIFT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause of the loop without drift; every change wakes it.
const DRIFT_IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Grace period of an evicted pod, which replaces its own: it holds devices that are somebody else's.
const DRIFT_GRACE_SECONDS: u32 = 30;

/// Dependencies of the task.
pub struct DriftContext {
    /// The API server.
    pub client: Client,
    /// Differences between the leases and the cluster.
    pub differences: watch::Receiver<Arc<LeaseDifferences>>,
    /// Counters.
    pub metrics: Metrics,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Runs until told to stop.
pub async fn run(mut context: DriftContext, stop: CancellationToken) {
    let mut corrections = Corrections::default();
    loop {
        let differences = Arc::clone(&context.differences.borrow_and_update());
        let drifted = &differences.drifted;
        context.metrics.drifted.set(i64::try_from(drifted.len()).unwrap_or(i64::MAX));
        for correction in corrections.due(drifted, context.clock.elapsed()) {
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = correct(&context, &correction) => outcome,
            };
            corrections.note(&correction.pod.uid, outcome, context.clock.elapsed());
        }
        let sleep = if drifted.is_empty() { DRIFT_IDLE_INTERVAL } else { DRIFT_CHECK_INTERVAL };
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = context.differences.changed() => {}
            () = context.clock.sleep(sleep) => {}
        }
    }
}

async fn correct(context: &DriftContext, correction: &Correction) -> Outcome {
    let DriftedPod { lease, namespace, name, node, .. } = &correction.pod;
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace);
    let (outcome, word) = match still_there(&pods, &correction.pod).await {
        Ok(false) => return Outcome::Gone,
        Ok(true) => {
            if correction.is_first {
                tell(&context.client, &correction.pod).await;
            }
            match remove(&pods, correction).await {
                Ok(()) if correction.means == Means::Evict => (Outcome::Done, "evicted"),
                Ok(()) => (Outcome::Done, "deleted"),
                Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => return Outcome::Gone,
                Err(CallError::Status(status)) if status.code == 429 => {
                    tracing::info!(namespace, pod = name, reason = status.message, "a drifted pod may not go yet");
                    (Outcome::Refused, "refused")
                }
                Err(error) => failed(&correction.pod, &error),
            }
        }
        Err(error) => failed(&correction.pod, &error),
    };
    context.metrics.drift_corrections.with_label_values(&[word]).inc();
    if outcome == Outcome::Done {
        tracing::warn!(%lease, namespace, pod = name, node, outcome = word, "a pod drifted from its lease: {}", message(&correction.pod));
    }
    outcome
}

fn failed(pod: &DriftedPod, error: &CallError) -> (Outcome, &'static str) {
    tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "a drifted pod cannot be evicted yet");
    (Outcome::Failed, "failed")
}

/// Whether the API server shows the pod where it was observed, and nothing ends it in time; a watch may be late.
async fn still_there(pods: &Api<Pod>, drifted: &DriftedPod) -> Result<bool, CallError> {
    let found = within_limit(pods.get_opt(&drifted.name)).await?;
    Ok(found.is_some_and(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        pod.metadata.uid.as_deref() == Some(&drifted.uid) && node == Some(&drifted.node) && !ends_in_time(&pod.metadata)
    }))
}

fn ends_in_time(pod: &ObjectMeta) -> bool {
    let grace = pod.deletion_grace_period_seconds.unwrap_or(0);
    pod.deletion_timestamp.is_some() && grace <= i64::from(DRIFT_GRACE_SECONDS)
}

async fn remove(pods: &Api<Pod>, correction: &Correction) -> Result<(), CallError> {
    let DriftedPod { namespace, name, uid, .. } = &correction.pod;
    // Another pod may have the name by now.
    let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
    let options = DeleteParams::default().grace_period(DRIFT_GRACE_SECONDS).preconditions(same);
    if correction.means == Means::Delete {
        return within_limit(pods.delete(name, &options)).await.map(drop);
    }
    // kube's own call sends the delete options under a name that API servers do not know.
    let eviction = Eviction {
        metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.clone()), ..ObjectMeta::default() },
        delete_options: Some(delete_options(&options)),
    };
    let parameters = PostParams::default();
    // The answer is a Status.
    let call = pods.create_subresource::<_, serde_json::Value>("eviction", name, &parameters, &eviction);
    within_limit(call).await.map(drop)
}

fn delete_options(options: &DeleteParams) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1;

    let uid = options.preconditions.as_ref().and_then(|same| same.uid.clone());
    v1::DeleteOptions {
        grace_period_seconds: options.grace_period_seconds.map(i64::from),
        preconditions: Some(v1::Preconditions { uid, resource_version: None }),
        ..v1::DeleteOptions::default()
    }
}

fn message(pod: &DriftedPod) -> String {
    let DriftedPod { lease, node, resource, allowed, held, .. } = pod;
    format!(
        "{lease} may use {allowed} {resource} on node {node}, and this pod, which holds {held}, is beyond that: it is \
         evicted, and the scheduler places its successor on the lease's nodes"
    )
}

/// Writes the event. A failure is logged and not repeated: the log and the metric say the same.
async fn tell(client: &Client, pod: &DriftedPod) {
    let event = Event {
        type_: EventType::Warning,
        reason: DRIFT_REASON.to_owned(),
        note: Some(message(pod)),
        action: "Evict".to_owned(),
        secondary: None,
    };
    let on = pod_reference(&pod.namespace, &pod.name, &pod.uid);
    if let Err(error) = within_limit(publish_event(client.clone(), &on, event)).await {
        tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "an event cannot be written");
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn a_pod_that_takes_an_hour_to_end_is_not_ending_in_time() {
        let ending = |grace: Option<i64>| ObjectMeta {
            deletion_timestamp: grace.map(|_| Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH)),
            deletion_grace_period_seconds: grace,
            ..ObjectMeta::default()
        };
        let found = [None, Some(0), Some(30), Some(3_600)].map(|grace| ends_in_time(&ending(grace)));
        assert_eq!(found, [false, true, true, false]);
    }
}
