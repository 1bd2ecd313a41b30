//! Kubernetes objects that deserialize only the fields the inventory needs.
//!
//! A large cluster has tens of thousands of pods; the parser skips their managed fields, volumes, environments and
//! images without allocating.

use std::borrow::Cow;
use std::collections::BTreeMap;

use comity_agent_kubernetes::hami::POD_SHARES_ANNOTATION;
use comity_agent_liqo::CREATOR_LABEL;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use k8s_openapi::api::core::v1::{
    Affinity, Container, Node, NodeAffinity, NodeCondition, NodeSelector, NodeSpec, NodeStatus, Pod, PodCondition,
    PodSpec, PodStatus, ResourceRequirements, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// An object with only the fields that this file reads; the others are unset.
#[derive(Clone, Debug)]
pub(crate) struct Partial<K>(pub(crate) K);

impl<K: Resource> Resource for Partial<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<'de> Deserialize<'de> for Partial<Pod> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PodRead::deserialize(deserializer).map(|read| Self(read.into()))
    }
}

impl<'de> Deserialize<'de> for Partial<Node> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodeRead::deserialize(deserializer).map(|read| Self(read.into()))
    }
}

type Amounts = Option<BTreeMap<String, Quantity>>;

/// A pod: identity, age, requests, and its node or the nodes that it may use.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodRead {
    metadata: PodMeta,
    spec: PodSpecRead,
    status: PodStatusRead,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodMeta {
    name: Option<String>,
    namespace: Option<String>,
    /// Where a watch resumes.
    resource_version: Option<String>,
    uid: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<PodLabels>,
    annotations: Option<PodAnnotations>,
}

/// The only labels that the inventory needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodLabels {
    /// [`CREATOR_LABEL`].
    #[serde(rename = "liqo.io/creator-user")]
    creator: Option<String>,
    /// [`LEASE_LABEL`].
    #[serde(rename = "comity.dev/lease")]
    lease: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodAnnotations {
    #[serde(rename = "hami.io/vgpu-devices-allocated")]
    hami_shares: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecRead {
    node_name: Option<String>,
    containers: Vec<ContainerRead>,
    init_containers: Option<Vec<ContainerRead>>,
    resources: Option<ResourcesRead>,
    overhead: Amounts,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<AffinityRead>,
    tolerations: Option<Vec<Toleration>>,
    priority: Option<i32>,
}

/// The only affinity that the inventory needs.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AffinityRead {
    node_affinity: Option<NodeAffinityRead>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityRead {
    required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerRead {
    restart_policy: Option<String>,
    resources: Option<ResourcesRead>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourcesRead {
    limits: Amounts,
    requests: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusRead {
    phase: Option<String>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<PodConditionRead>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodConditionRead {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

impl From<ResourcesRead> for ResourceRequirements {
    fn from(read: ResourcesRead) -> Self {
        Self { limits: read.limits, requests: read.requests, claims: None }
    }
}

impl From<ContainerRead> for Container {
    fn from(read: ContainerRead) -> Self {
        Self { restart_policy: read.restart_policy, resources: read.resources.map(Into::into), ..Self::default() }
    }
}

impl From<AffinityRead> for Affinity {
    fn from(read: AffinityRead) -> Self {
        let node_affinity = read.node_affinity.map(|read| NodeAffinity {
            required_during_scheduling_ignored_during_execution: read
                .required_during_scheduling_ignored_during_execution,
            ..NodeAffinity::default()
        });
        Self { node_affinity, ..Self::default() }
    }
}

impl From<PodConditionRead> for PodCondition {
    fn from(PodConditionRead { kind, status, reason, message }: PodConditionRead) -> Self {
        Self { type_: kind, status, reason, message, ..Self::default() }
    }
}

impl From<PodRead> for Pod {
    fn from(PodRead { metadata, spec, status }: PodRead) -> Self {
        let hami_shares = metadata.annotations.and_then(|annotations| annotations.hami_shares);
        let containers = |read: Vec<ContainerRead>| read.into_iter().map(Container::from).collect();
        let PodLabels { creator, lease } = metadata.labels.unwrap_or_default();
        let labels = [(CREATOR_LABEL, creator), (LEASE_LABEL, lease)];
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                resource_version: metadata.resource_version,
                uid: metadata.uid,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                labels: Some(labels.collect()),
                annotations: hami_shares.map(|text| [(POD_SHARES_ANNOTATION.to_owned(), text)].into()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: spec.node_name,
                containers: containers(spec.containers),
                init_containers: spec.init_containers.map(containers),
                resources: spec.resources.map(Into::into),
                overhead: spec.overhead,
                node_selector: spec.node_selector,
                affinity: spec.affinity.map(Into::into),
                tolerations: spec.tolerations,
                priority: spec.priority,
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: status.phase,
                nominated_node_name: status.nominated_node_name,
                conditions: status.conditions.map(|all| all.into_iter().map(Into::into).collect()),
                ..PodStatus::default()
            }),
        }
    }
}

/// A node: identity, labels, schedulability and resources.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeRead {
    metadata: NodeMeta,
    spec: NodeSpecRead,
    status: NodeStatusRead,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeMeta {
    name: Option<String>,
    /// Where a watch resumes.
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpecRead {
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatusRead {
    allocatable: Amounts,
    capacity: Amounts,
    conditions: Option<Vec<ConditionRead>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConditionRead {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: Option<String>,
}

impl From<NodeRead> for Node {
    fn from(NodeRead { metadata, spec, status }: NodeRead) -> Self {
        let condition = |read: ConditionRead| NodeCondition {
            type_: read.kind,
            status: read.status,
            message: read.message,
            ..NodeCondition::default()
        };
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                resource_version: metadata.resource_version,
                labels: metadata.labels,
                annotations: metadata.annotations,
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec { unschedulable: spec.unschedulable, taints: spec.taints, ..NodeSpec::default() }),
            status: Some(NodeStatus {
                allocatable: status.allocatable,
                capacity: status.capacity,
                conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
                ..NodeStatus::default()
            }),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observe::node_facts::NodeFacts;
    use crate::observe::pending_pods::node_terms::NodeTerms;
    use crate::observe::pending_pods::pending_pod::PendingPod;
    use crate::observe::pod_facts::Names;

    #[test]
    fn the_facts_of_a_partial_pod_are_those_of_the_whole() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "ns", "resourceVersion": "7", "uid": "u", "creationTimestamp": null,
                "annotations": { "a": "b", "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,1:;" },
                "managedFields": [{ "manager": "kubectl", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": {
                "nodeName": "node-1", "volumes": [{ "name": "v", "emptyDir": {} }], "overhead": { "cpu": "250m" },
                "containers": [{ "name": "c", "image": "i", "env": [{ "name": "A", "value": "b" }], "resources": {
                    "limits": { "nvidia.com/gpu": "2" }, "requests": { "cpu": "1", "memory": "1Gi" },
                } }],
                "initContainers": [{ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "2" } } }],
                "resources": { "requests": { "memory": "3Gi" } },
            },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [] },
        });
        let Partial(lean) = serde_json::from_value::<Partial<Pod>>(pod.clone()).unwrap();
        assert_eq!(lean.metadata.resource_version.as_deref(), Some("7"));
        let mut names = Names::default();
        let facts = names.facts_of(&lean).unwrap();
        assert!(&*facts.node == "node-1" && facts.requests.contains(&("cpu".into(), 3_250)), "{facts:?}");
        assert_eq!(facts.hami_shares.as_deref(), Some("GPU-a,NVIDIA,1,1:;"));
        assert_eq!(Some(facts), names.facts_of(&serde_json::from_value(pod).unwrap()));

        let nominated =
            json!({ "metadata": { "name": "p" }, "status": { "phase": "Pending", "nominatedNodeName": "n" } });
        let Partial(lean) = serde_json::from_value::<Partial<Pod>>(nominated).unwrap();
        assert_eq!(&*names.facts_of(&lean).unwrap().node, "n");
    }

    #[test]
    fn the_facts_of_a_partial_pending_pod_are_those_of_the_whole() {
        let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] });
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-20T10:00:00Z" },
            "spec": {
                "priority": 100, "nodeSelector": { "rack": "4" }, "tolerations": [{ "operator": "Exists" }],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] },
                    },
                    "podAntiAffinity": {},
                },
                "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "2" } } }],
            },
            "status": { "phase": "Pending", "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": null,
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }] },
        });
        let Partial(lean) = serde_json::from_value::<Partial<Pod>>(pod.clone()).unwrap();
        let facts = PendingPod::of(&lean).unwrap();
        assert!(facts.priority == 100 && facts.created_ms > 0 && facts.terms != NodeTerms::default(), "{facts:?}");
        assert_eq!(Some(facts), PendingPod::of(&serde_json::from_value(pod).unwrap()));
    }

    #[test]
    fn the_facts_of_a_partial_node_are_those_of_the_whole() {
        let node = json!({
            "metadata": {
                "name": "n", "resourceVersion": "7", "managedFields": [{ "manager": "kubelet" }],
                "labels": { "nvidia.com/gpu.product": "Tesla-T4", "liqo.io/type": "virtual-node" },
                "annotations": { "hami.io/node-nvidia-register": "x" },
            },
            "spec": { "podCIDR": "10.0.0.0/24", "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }] },
            "status": {
                "allocatable": { "cpu": "8", "nvidia.com/gpu": "1" }, "capacity": { "cpu": "8", "nvidia.com/gpu": "2" },
                "conditions": [
                    { "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
                    { "type": "GpuXid", "status": "True", "message": "NVRM: Xid (PCI:0000:11:00): 79, pid=1" },
                ],
                "images": [{ "names": ["a"], "sizeBytes": 1 }], "nodeInfo": {},
            },
        });
        let Partial(lean) = serde_json::from_value::<Partial<Node>>(node.clone()).unwrap();
        assert_eq!(lean.metadata.resource_version.as_deref(), Some("7"));
        let facts = NodeFacts::of(&lean).unwrap();
        assert!(facts.taints.len() == 1 && facts.other_labels.contains_key("liqo.io/type"), "{facts:?}");
        assert!(facts.schedulable && facts.is_virtual && facts.hami.is_some() && facts.xids.len() == 1, "{facts:?}");
        let mut cordoned = node.clone();
        cordoned["metadata"]["managedFields"] = json!([]);
        cordoned["status"]["nodeInfo"] = json!({
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        });
        assert_eq!(Some(facts), NodeFacts::of(&serde_json::from_value(cordoned.clone()).unwrap()));
        cordoned["spec"]["unschedulable"] = json!(true);
        let Partial(lean) = serde_json::from_value::<Partial<Node>>(cordoned).unwrap();
        assert!(!NodeFacts::of(&lean).unwrap().schedulable);
    }
}
