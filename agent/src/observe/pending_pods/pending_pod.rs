//! A pod of the donor's own for which the scheduler found too few GPUs.

use comity_agent_kubernetes::gpu_resource;
use comity_agent_kubernetes::pod_request::{Amounts, effective_request};
use comity_agent_liqo::CREATOR_LABEL;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::node_terms::NodeTerms;
use crate::observe::pod_facts::{PodFacts, is_namespace_of_guests};

/// The facts kept of such a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PendingPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) priority: i32,
    /// When it was created, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// Effective request.
    pub(crate) requests: Amounts,
    /// The nodes that it may use.
    pub(crate) terms: NodeTerms,
}

impl PendingPod {
    /// `None` for pods of leases, and for pods that the scheduler has placed, not tried, or refused for other reasons.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let namespace = pod.namespace()?;
        if spec.node_name.as_ref().is_some_and(|node| !node.is_empty())
            || pod.metadata.deletion_timestamp.is_some()
            || pod.labels().contains_key(CREATOR_LABEL)
            || is_namespace_of_guests(&namespace)
        {
            return None;
        }
        let conditions = pod.status.as_ref()?.conditions.as_deref()?;
        let refused = conditions.iter().find(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        })?;
        let message = refused.message.as_deref().unwrap_or_default();
        let requests = effective_request(pod);
        let lacks =
            |name: &String| gpu_resource::counts_gpus(name) && message.contains(&format!("Insufficient {name}"));
        requests.keys().any(lacks).then(|| Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            priority: spec.priority.unwrap_or_default(),
            created_ms: pod.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond()),
            terms: NodeTerms::of(pod),
            namespace,
            requests,
        })
    }

    /// The facts that count if the node runs it.
    pub(crate) fn on_node(&self, node: &str) -> PodFacts {
        PodFacts {
            namespace: self.namespace.as_str().into(),
            node: node.into(),
            requests: self.requests.iter().map(|(name, amount)| (name.as_str().into(), *amount)).collect(),
            guest: None,
            hami_shares: None,
        }
    }

    /// Resources of GPUs, or parts of them, and how many units it requests.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (&String, u64)> {
        let gpus = self.requests.iter().filter(|(name, amount)| gpu_resource::counts_gpus(name) && **amount > 0);
        gpus.map(|(name, amount)| (name, *amount))
    }
}
