//! The facts kept of a pod on a virtual node.

use k8s_openapi::api::core::v1::Pod;

use super::{CHECKPOINTED, RECLAIM_AT, RECLAIM_REASON};
use crate::burst::PodRef;

/// A pod bound to a virtual node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// Which pod.
    pub pod: PodRef,
    /// The node.
    pub node: String,
    /// Its containers run or may run, so work could be lost.
    pub runs: bool,
    /// Succeeded or failed.
    pub is_finished: bool,
    /// Deadline in its notice.
    pub notified_deadline: Option<String>,
    /// Reason in its notice.
    pub notified_reason: Option<String>,
    /// It answered that its work is saved.
    pub is_saved: bool,
}

impl BoundPod {
    /// The facts of a pod; `None` for one without a node.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
        let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        Some(Self {
            pod: PodRef {
                namespace: metadata.namespace.clone()?,
                name: metadata.name.clone()?,
                uid: metadata.uid.clone()?,
            },
            node,
            runs: !matches!(phase, "" | "Pending" | "Succeeded" | "Failed"),
            is_finished: matches!(phase, "Succeeded" | "Failed"),
            notified_deadline: annotation(RECLAIM_AT),
            notified_reason: annotation(RECLAIM_REASON),
            is_saved: annotation(CHECKPOINTED).as_deref() == Some("true"),
        })
    }

    /// Whether it carries a notice.
    #[must_use]
    pub const fn is_notified(&self) -> bool {
        self.notified_deadline.is_some() || self.notified_reason.is_some()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(annotations: Value, phase: &str, node: Option<&str>) -> Option<BoundPod> {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "team-a", "uid": "u", "annotations": annotations },
            "spec": { "nodeName": node, "containers": [] }, "status": { "phase": phase },
        });
        BoundPod::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn only_running_pods_can_lose_work() {
        let runs = |phase: &str| facts(json!({}), phase, Some("lease-1")).unwrap().runs;
        // The node is silent: the pod may run.
        assert!(runs("Running") && runs("Unknown"));
        assert!(!runs("Pending") && !runs("Succeeded") && !runs("Failed"));
        assert!(facts(json!({}), "Pending", None).is_none());
    }

    #[test]
    fn only_the_word_true_is_an_answer() {
        let of = |annotations| facts(annotations, "Running", Some("lease-1")).unwrap();
        assert!(of(json!({ CHECKPOINTED: "true" })).is_saved && !of(json!({ CHECKPOINTED: "soon" })).is_saved);
        assert!(of(json!({ RECLAIM_REASON: "preempted" })).is_notified() && !of(json!({})).is_notified());
    }
}
