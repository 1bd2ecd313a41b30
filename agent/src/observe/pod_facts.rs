//! The facts kept of a pod: few, because a cluster may have tens of thousands.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_kubernetes::hami::POD_SHARES_ANNOTATION;
use comity_agent_kubernetes::own_pods::PodNamespace;
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_liqo::CREATOR_LABEL;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;

/// Namespace of the pods that hold leased GPUs, in `deploy/agent/hold.yaml`.
pub const PLACEHOLDER_NAMESPACE: PodNamespace =
    PodNamespace { name: "comity-hold", manifest: "deploy/agent/hold.yaml" };
/// How names of leases' namespaces begin.
const LEASE_NAMESPACE_PREFIX: &str = "comity-lease-";

/// Whether pods of this namespace may belong to leases.
pub(crate) fn is_namespace_of_guests(name: &str) -> bool {
    name == PLACEHOLDER_NAMESPACE.name || name.starts_with(LEASE_NAMESPACE_PREFIX)
}

/// A pod that uses resources of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodFacts {
    /// Namespace.
    pub(crate) namespace: Arc<str>,
    /// Node it is bound to, or nominated for.
    pub(crate) node: Arc<str>,
    /// Effective request by resource, ordered by name.
    pub(crate) requests: Box<[(Arc<str>, u64)]>,
    /// Present for a pod that may belong to a lease.
    pub(crate) guest: Option<Box<GuestPod>>,
    /// HAMi's annotation with its devices.
    pub(crate) hami_shares: Option<Box<str>>,
}

impl PodFacts {
    /// The requested amount of a resource.
    pub(crate) fn request(&self, resource: &str) -> u64 {
        self.requests.iter().find(|(name, _)| **name == *resource).map_or(0, |(_, amount)| *amount)
    }
}

/// More facts of a pod that may belong to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPod {
    /// Name.
    pub(crate) name: String,
    /// UID.
    pub(crate) uid: String,
    /// When it was created, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// The user of Liqo that made it.
    pub(crate) liqo_user: Option<String>,
    /// The lease that its label names.
    pub(crate) lease: Option<LeaseId>,
    /// Its part of a pod's life.
    pub(crate) stage: GuestStage,
}

/// Parts of the life of a pod that holds resources of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestStage {
    /// It has made room on the node by preemption.
    Nominated,
    /// It is bound to the node.
    Bound,
    /// It is being deleted.
    Ending,
}

impl GuestPod {
    fn of(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let liqo_user = label(CREATOR_LABEL).cloned();
        if liqo_user.is_none() && !metadata.namespace.as_deref().is_some_and(is_namespace_of_guests) {
            return None;
        }
        let is_bound =
            pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
        let stage = match (metadata.deletion_timestamp.is_some(), is_bound) {
            (true, _) => GuestStage::Ending,
            (false, true) => GuestStage::Bound,
            (false, false) => GuestStage::Nominated,
        };
        Some(Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            created_ms: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond()),
            lease: label(LEASE_LABEL).and_then(|lease| lease.parse().ok()),
            liqo_user,
            stage,
        })
    }
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
            guest: GuestPod::of(pod).map(Box::new),
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
