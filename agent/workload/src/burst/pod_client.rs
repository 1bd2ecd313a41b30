//! Patches, deletes and events on pods.

use std::time::Duration;

use comity_agent_kubernetes::object_events::{pod_reference, publish_event};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::events::{Event, EventType};
use serde::Serialize;

use super::facts::pod::{PodFacts, PodRef};
use super::note::Note;
use super::plan::BurstAction;
use super::{GATE, patch};

/// Time limit of one call.
const POD_CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How an action ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The pod now has these facts.
    Changed(Box<PodFacts>),
    /// Done.
    Done,
    /// The pod changed meanwhile: plan again.
    Outdated,
    /// The call failed with this reason: retry.
    Failed(String),
}

/// Calls of burst and reclaim about pods.
#[derive(Clone)]
pub(crate) struct PodClient {
    client: kube::Client,
}

impl PodClient {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Executes one action on a pod; `facts` are those that it was planned by.
    pub(super) async fn act(&self, action: &BurstAction, facts: &PodFacts) -> Outcome {
        let mut after = facts.clone();
        let patch = match action {
            BurstAction::Assign { request, .. } => {
                after.request = Some(request.clone());
                patch::assign(facts, request)
            }
            BurstAction::Pin { lease, request, .. } => {
                (after.request, after.lease, after.pinned) =
                    (Some(request.clone()), Some(lease.clone()), Some(lease.clone()));
                after.tolerates.insert(lease.clone());
                after.gates.retain(|gate| gate != GATE);
                patch::pin(facts, lease, request)
            }
            BurstAction::Tolerate { lease, request, .. } => {
                (after.request, after.lease) = (Some(request.clone()), Some(lease.clone()));
                after.tolerates.insert(lease.clone());
                patch::tolerate(facts, lease, request)
            }
            BurstAction::Ungate { .. } => {
                after.gates.retain(|gate| gate != GATE);
                patch::ungate(facts)
            }
            BurstAction::Replace { pod, .. } => return self.delete(pod).await,
            BurstAction::WriteEvent { pod, note } => return self.write_event(pod, note, "Burst").await,
            _ => return Outcome::Done,
        };
        match self.patch(&facts.pod, &Patch::Json::<()>(patch)).await {
            Outcome::Done => Outcome::Changed(Box::new(after)),
            other => other,
        }
    }

    /// Patches a pod. The patch itself must test the pod's UID.
    pub(crate) async fn patch<P: Serialize + std::fmt::Debug + Sync>(&self, pod: &PodRef, patch: &Patch<P>) -> Outcome {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace);
        limited(api.patch(&pod.name, &PatchParams::default(), patch)).await
    }

    async fn delete(&self, pod: &PodRef) -> Outcome {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace);
        let same = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        limited(api.delete(&pod.name, &DeleteParams { preconditions: Some(same), ..DeleteParams::default() })).await
    }

    /// Writes an event on a pod; `action` is the event's CamelCase action.
    pub(crate) async fn write_event(&self, pod: &PodRef, note: &Note, action: &str) -> Outcome {
        let event = Event {
            type_: if note.is_warning { EventType::Warning } else { EventType::Normal },
            reason: note.reason.to_owned(),
            note: Some(note.text.clone()),
            action: action.to_owned(),
            secondary: None,
        };
        let on = pod_reference(&pod.namespace, &pod.name, &pod.uid);
        limited(publish_event(self.client.clone(), &on, event)).await
    }

    /// Number of pods that a Job will still run at once; `None` if unknown.
    pub(super) async fn job_size(&self, namespace: &str, name: &str, uid: &str) -> Option<u32> {
        let api = Api::<Job>::namespaced(self.client.clone(), namespace);
        let job = tokio::time::timeout(POD_CALL_TIMEOUT, api.get_opt(name)).await.ok()?.ok()??;
        let spec = job.spec.filter(|_| job.metadata.uid.as_deref() == Some(uid))?;
        let parallelism = spec.parallelism.unwrap_or(1);
        let left = spec.completions.map(|all| all - job.status.and_then(|status| status.succeeded).unwrap_or(0));
        u32::try_from(left.map_or(parallelism, |left| left.min(parallelism)).max(1)).ok()
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Outcome {
    match tokio::time::timeout(POD_CALL_TIMEOUT, call).await {
        Err(_) => Outcome::Failed(format!("no answer within {} s", POD_CALL_TIMEOUT.as_secs())),
        Ok(Ok(_)) => Outcome::Done,
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Outcome::Outdated,
        // A test of the patch failed, or another pod has this name now. Any other 422 is a refusal.
        Ok(Err(kube::Error::Api(status)))
            if status.code == 422
                && ["testing value", "metadata.uid"].iter().any(|mark| status.message.contains(mark)) =>
        {
            Outcome::Outdated
        }
        Ok(Err(kube::Error::Api(status))) => Outcome::Failed(format!("the API server says: {}", status.message)),
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
    }
}

/// The pod of an action, if it has one.
pub(super) fn pod_of(action: &BurstAction) -> Option<&PodRef> {
    match action {
        BurstAction::Assign { pod, .. }
        | BurstAction::Pin { pod, .. }
        | BurstAction::Tolerate { pod, .. }
        | BurstAction::Ungate { pod }
        | BurstAction::Replace { pod, .. }
        | BurstAction::WriteEvent { pod, .. } => Some(pod),
        BurstAction::Submit(_)
        | BurstAction::Cancel { .. }
        | BurstAction::Renew { .. }
        | BurstAction::ReleaseLease { .. }
        | BurstAction::WakeAt { .. } => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn every_event_has_its_own_text() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&written);
        let service = tower::service_fn(move |request: Request<Body>| {
            let events = Arc::clone(&events);
            async move {
                let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                events.lock().unwrap().push(event["note"].as_str().unwrap_or_default().to_owned());
                Ok::<_, std::io::Error>(Response::new(Body::from(body.to_vec())))
            }
        });
        let pod_client = PodClient::new(kube::Client::new(service, "default"));
        let pod = crate::burst::fixtures::pod("a").facts.pod;
        for text in ["campus: no room", "campus: 2 of 8 GPUs are free"] {
            let note = Note { is_warning: false, reason: "ComityWaiting", text: text.to_owned() };
            assert!(matches!(pod_client.write_event(&pod, &note, "Burst").await, Outcome::Done));
        }
        assert_eq!(*written.lock().unwrap(), ["campus: no room", "campus: 2 of 8 GPUs are free"]);
    }
}
