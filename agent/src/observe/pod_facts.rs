//! The facts kept of a pod: few, because a cluster may have tens of thousands.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_kubernetes::hami::POD_SHARES_ANNOTATION;
use comity_agent_kubernetes::pod_request::effective_request;
use k8s_openapi::api::core::v1::Pod;

/// A pod that uses resources of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodFacts {
    /// Namespace.
    pub(crate) namespace: Arc<str>,
    /// Node it is bound to, or nominated for.
    pub(crate) node: Arc<str>,
    /// Effective request by resource, ordered by name.
    pub(crate) requests: Box<[(Arc<str>, u64)]>,
    /// HAMi's annotation with its devices.
    pub(crate) hami_shares: Option<Box<str>>,
}

/// Interns names of nodes, namespaces and resources.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: BTreeSet<Arc<str>>,
    /// Number of names after unused ones were last dropped.
    in_use: usize,
}

impl Names {
    fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() > self.in_use.saturating_mul(2).max(256) {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.in_use = self.names.len();
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    /// The facts of a pod; `None` if it is finished or not bound to a node.
    pub(crate) fn facts_of(&mut self, pod: &Pod) -> Option<PodFacts> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return None;
        }
        // A nominated pod has made room by preemption and will use it.
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = bound
            .or_else(|| status.and_then(|status| status.nominated_node_name.as_deref()))
            .filter(|node| !node.is_empty())?;
        Some(PodFacts {
            namespace: self.share(pod.metadata.namespace.as_deref().unwrap_or_default()),
            node: self.share(node),
            requests: effective_request(pod).iter().map(|(name, amount)| (self.share(name), *amount)).collect(),
            hami_shares: pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(POD_SHARES_ANNOTATION))
                .map(|text| text.as_str().into()),
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(node: &str) -> Pod {
        serde_json::from_value(
            json!({ "metadata": { "namespace": "ns" }, "spec": { "nodeName": node, "containers": [] } }),
        )
        .unwrap()
    }

    #[test]
    fn names_are_kept_once_and_only_while_a_pod_has_them() {
        let mut names = Names::default();
        let (one, two) = (names.facts_of(&pod("node-0")).unwrap(), names.facts_of(&pod("node-0")).unwrap());
        assert!(Arc::ptr_eq(&one.node, &two.node) && Arc::ptr_eq(&one.namespace, &two.namespace));
        for number in 1..2_000 {
            names.facts_of(&pod(&format!("node-{number}"))).unwrap();
        }
        assert!(names.names.len() <= 258, "{} names of pods that are gone", names.names.len());
        assert!(Arc::ptr_eq(&one.node, &names.facts_of(&pod("node-0")).unwrap().node));
    }
}
