//! Liqo's objects of a peering and a lease on the origin. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::call::own_labels;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_agent_model::lease::target_namespace::TENANT_LABEL;
use comity_types::LeaseId;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::NamespaceMapping;
use crate::{
    IdentityParams, LiqoPeer, PEERING_LABEL, REMOTE_CLUSTER_LABEL, SLICE_CLASS, identity, namespace_offloading,
    resource_slice,
};

/// Name that Liqo requires of a NamespaceOffloading.
pub(super) const OFFLOADING: &str = "offloading";
pub(super) use crate::TARGET_NAMESPACE_LABEL as TARGET_LABEL;
/// Annotation of an Identity: a digest of the parameters that it was made from.
pub(super) const DIGEST: &str = "comity.dev/parameters";

/// The request to a donor for one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRequest {
    /// The lease.
    pub lease_id: LeaseId,
    /// Name of the slice, and so of the node: the lease's id, or that of an earlier lease whose node is idle.
    pub slice: String,
    /// Kubernetes resource names and quantities, as in the lease.
    pub resources: BTreeMap<String, String>,
    /// The namespace whose pods the lease is for.
    pub target_namespace: String,
    /// The lease's tenant, to whom that namespace must belong.
    pub tenant: String,
}

/// The slice of a lease, or an idle one.
#[derive(Clone, Debug)]
pub(super) struct HeldSlice {
    /// Name of the slice, and of the virtual node.
    pub(super) slice: String,
    /// Namespace of both.
    pub(super) tenant: String,
    /// Liqo id of the donor.
    pub(super) donor: String,
    /// The namespace whose pods it is for.
    pub(super) target: Option<String>,
}

impl HeldSlice {
    /// Reads a slice, or a virtual node that outlived its slice.
    pub(super) fn of(found: &DynamicObject) -> Self {
        let target = found.annotations().get(TARGET_LABEL);
        Self {
            slice: found.name_any(),
            tenant: found.namespace().unwrap_or_default(),
            donor: found.labels().get(REMOTE_CLUSTER_LABEL).cloned().unwrap_or_default(),
            target: target.or_else(|| found.labels().get(TARGET_LABEL)).cloned(),
        }
    }
}

/// Name of the Identity of a donor's control plane.
pub(super) fn identity_name(peer: &LiqoPeer) -> String {
    format!("controlplane-{}", peer.liqo_id)
}

/// The Secret with the credential for a donor's control plane: Liqo's rule.
pub(super) fn token_secret(peer: &LiqoPeer) -> String {
    format!("kubeconfig-{}", identity_name(peer))
}

/// Liqo's Secret with the kubeconfig of a slice.
pub(super) fn slice_secret(slice: &str) -> String {
    format!("kubeconfig-resourceslice-{slice}")
}

/// The certificate for the donor's control plane.
pub(super) fn control_plane_identity(
    peer: &LiqoPeer,
    params: &IdentityParams,
    certificate: &str,
    digest: &str,
) -> DynamicObject {
    let mut object =
        DynamicObject::new(&identity_name(peer), &identity()).within(&peer.tenant_namespace()).data(json!({
            "spec": {
                "clusterID": peer.liqo_id,
                "type": "ControlPlane",
                "namespace": params.tenant_namespace,
                "authParams": { "ca": params.ca, "signedCRT": certificate, "apiServer": params.api_server },
            }
        }));
    object.metadata.labels =
        Some(own_labels([(REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()), (PEERING_LABEL, &peer.peering)]));
    object.metadata.annotations = Some(BTreeMap::from([(DIGEST.to_owned(), digest.to_owned())]));
    object
}

/// The ResourceSlice. The virtual node and the Node get its name.
pub(super) fn slice(peer: &LiqoPeer, request: &SliceRequest) -> DynamicObject {
    let mut object = DynamicObject::new(&request.slice, &resource_slice())
        .within(&peer.tenant_namespace())
        .data(json!({ "spec": { "class": SLICE_CLASS, "resources": request.resources } }));
    let lease = request.lease_id.to_string();
    object.metadata.labels = Some(own_labels([
        ("liqo.io/replication", "true"),
        ("liqo.io/remoteID", peer.liqo_id.as_str()),
        (REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()),
        (LEASE_LABEL, &lease),
        (PEERING_LABEL, &peer.peering),
    ]));
    object.metadata.annotations = Some(BTreeMap::from([
        ("liqo.io/create-virtual-node".to_owned(), "true".to_owned()),
        (TARGET_LABEL.to_owned(), request.target_namespace.clone()),
    ]));
    object
}

/// The NamespaceOffloading that lets pods of a namespace run on the virtual nodes of its leases.
///
/// Liqo uses the selector for two purposes. For remote namespaces it checks the virtual nodes one by one, and a node
/// that does not match removes the namespace that another node of the same donor brought; so the first term selects
/// donors, which are equal for all nodes of a donor. For pods it copies the selector into each new pod, where it cannot
/// be changed; so the second term also matches donors that are added later.
pub(super) fn offloading(
    target_namespace: &str,
    tenant: &str,
    donors: &BTreeSet<String>,
    mapping: NamespaceMapping,
) -> DynamicObject {
    let term =
        |key: &str, values: Value| json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": values }] });
    let terms = [term(REMOTE_CLUSTER_LABEL, json!(donors)), term(TARGET_LABEL, json!([target_namespace]))];
    let mut object = DynamicObject::new(OFFLOADING, &namespace_offloading()).within(target_namespace).data(json!({
        "spec": {
            "namespaceMappingStrategy": mapping.strategy(),
            "podOffloadingStrategy": "LocalAndRemote",
            "clusterSelector": { "nodeSelectorTerms": terms },
        }
    }));
    // The policy comity-offloading compares it with the namespace's.
    object.metadata.labels = Some(own_labels([(TENANT_LABEL, tenant)]));
    object
}

/// Patch that adds the lease's labels and taint to a virtual node; `None` if it has them.
pub(super) fn virtual_node_patch(node: &DynamicObject, lease_id: &str, target_namespace: &str) -> Option<Value> {
    let spec = &node.data["spec"];
    let labels = [(LEASE_LABEL, lease_id), (TARGET_LABEL, target_namespace)];
    let taint = json!({ "key": LEASE_LABEL, "value": lease_id, "effect": "NoSchedule" });
    let labelled = labels.iter().all(|(key, value)| spec["labels"][key] == *value);
    let taints = with_lease_taint(node, taint);
    if labelled && spec["taints"] == json!(taints) {
        return None;
    }
    let labels: BTreeMap<_, _> = labels.into_iter().collect();
    // With the version, because the list is replaced as a whole.
    Some(json!({
        "metadata": { "labels": labels, "resourceVersion": node.metadata.resource_version },
        "spec": { "labels": labels, "taints": taints },
    }))
}

/// Patch that keeps all pods off an idle virtual node.
pub(super) fn idle_patch(node: &DynamicObject) -> Value {
    let taint = json!({ "key": LEASE_LABEL, "value": "none", "effect": "NoSchedule" });
    let no_labels = json!({ LEASE_LABEL: null, TARGET_LABEL: null });
    json!({
        "metadata": { "labels": no_labels, "resourceVersion": node.metadata.resource_version },
        "spec": { "labels": no_labels, "taints": with_lease_taint(node, taint) },
    })
}

/// A virtual node's taints, with this one as the only one about leases.
fn with_lease_taint(node: &DynamicObject, taint: Value) -> Vec<Value> {
    let mut taints: Vec<Value> = node.data["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.retain(|other| other["key"] != LEASE_LABEL);
    taints.push(taint);
    taints
}

/// A patch that evicts every pod of the lease from the virtual node by a further taint, and removes the node from its
/// namespace; `None` if both are done.
pub(super) fn drain_patch(node: &DynamicObject, lease_id: &str) -> Option<Value> {
    let spec = &node.data["spec"];
    let mut taints: Vec<Value> = spec["taints"].as_array().cloned().unwrap_or_default();
    let taint = json!({ "key": LEASE_LABEL, "value": lease_id, "effect": "NoExecute" });
    let tainted = taints.contains(&taint);
    if tainted && spec["labels"][TARGET_LABEL].is_null() {
        return None;
    }
    if !tainted {
        taints.push(taint);
    }
    Some(json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints, "labels": { TARGET_LABEL: null } },
    }))
}

/// A condition of a list: its status and its message.
pub(super) fn condition<'a>(conditions: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let found = conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?;
    Some((found["status"].as_str()?, found["message"].as_str().unwrap_or_default()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::virtual_node;

    #[test]
    fn a_virtual_node_gets_its_lease_once_and_keeps_what_others_wrote() {
        let mut node = DynamicObject::new("lease-7", &virtual_node()).data(json!({ "spec": {
            "labels": { "gpu": "H100" },
            "taints": [{ "key": "other", "effect": "NoSchedule" }, { "key": LEASE_LABEL, "value": "lease-6", "effect": "NoSchedule" }],
        } }));
        node.metadata.resource_version = Some("5".into());
        let patch = virtual_node_patch(&node, "lease-7", "team-a").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
        assert_eq!(patch["spec"]["labels"], json!({ LEASE_LABEL: "lease-7", TARGET_LABEL: "team-a" }));
        assert_eq!(
            patch["spec"]["taints"],
            json!([
                { "key": "other", "effect": "NoSchedule" },
                { "key": LEASE_LABEL, "value": "lease-7", "effect": "NoSchedule" },
            ])
        );
        node.data["spec"] = patch["spec"].clone();
        assert_eq!(virtual_node_patch(&node, "lease-7", "team-a"), None);

        let drain = drain_patch(&node, "lease-7").unwrap();
        assert_eq!(drain["spec"]["taints"].as_array().unwrap().len(), 3);
        node.data["spec"]["taints"] = drain["spec"]["taints"].clone();
        assert!(drain_patch(&node, "lease-7").is_some(), "it is still one of its namespace");
        node.data["spec"]["labels"] = json!({ LEASE_LABEL: "lease-7" });
        assert_eq!(drain_patch(&node, "lease-7"), None);

        let idle = idle_patch(&node);
        assert_eq!(idle["spec"]["labels"], json!({ LEASE_LABEL: null, TARGET_LABEL: null }));
        let taints = json!([
            { "key": "other", "effect": "NoSchedule" },
            { "key": LEASE_LABEL, "value": "none", "effect": "NoSchedule" },
        ]);
        assert_eq!(idle["spec"]["taints"], taints, "pods of no lease");
        node.data["spec"] = json!({ "taints": taints });
        let next = virtual_node_patch(&node, "lease-8", "team-b").unwrap();
        assert_eq!(
            next["spec"]["taints"][1],
            json!({ "key": LEASE_LABEL, "value": "lease-8", "effect": "NoSchedule" })
        );
    }

    #[test]
    fn an_offloading_selects_present_and_future_donors() {
        let donors = ["west", "north"].map(str::to_owned).into();
        let object = offloading("team-a", "vision", &donors, NamespaceMapping::EnforceSameName);
        let terms = &object.data["spec"]["clusterSelector"]["nodeSelectorTerms"];
        assert_eq!(
            terms[0]["matchExpressions"],
            json!([{ "key": REMOTE_CLUSTER_LABEL, "operator": "In", "values": ["north", "west"] }])
        );
        assert_eq!(
            terms[1]["matchExpressions"],
            json!([{ "key": TARGET_LABEL, "operator": "In", "values": ["team-a"] }])
        );
        assert_eq!(object.data["spec"]["namespaceMappingStrategy"], "EnforceSameName");
        assert_eq!(object.labels()[TENANT_LABEL], "vision", "the policy comity-offloading asks for it");
    }

    #[test]
    fn conditions_are_found_by_kind() {
        let list = json!([{ "type": "A", "status": "Accepted" }, { "type": "B", "status": "Denied", "message": "no" }]);
        assert_eq!(condition(&list, "B"), Some(("Denied", "no")));
        assert_eq!(condition(&list, "A"), Some(("Accepted", "")));
        assert_eq!(condition(&Value::Null, "A"), None);
    }
}
