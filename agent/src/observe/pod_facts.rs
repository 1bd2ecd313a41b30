//! What is kept of a Kubernetes pod.

use k8s_openapi::api::core::v1::Pod;

use super::fold::PodFacts;
use super::pod_request::effective_request;

/// The facts of a pod; `None` for one that holds nothing: finished, or not yet given to a node.
pub(crate) fn pod_facts(pod: &Pod) -> Option<PodFacts> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    // A nominated pod has made room by preemption and will take it.
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = bound
        .or_else(|| status.and_then(|status| status.nominated_node_name.as_deref()))
        .filter(|node| !node.is_empty())?;
    Some(PodFacts {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        node: node.to_owned(),
        requests: effective_request(pod),
    })
}
