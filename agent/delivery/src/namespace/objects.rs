//! The objects of a lease's namespace besides its quota. Pure.

use std::collections::BTreeMap;

use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::guest_egress::egress_rules;
use comity_agent_kubernetes::hami::HamiShare;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::lease::lease_id::{
    DEVICES_ANNOTATION, GPU_RESOURCE_ANNOTATION, LEASE_LABEL, LEASE_NODES_LABEL, namespace_name,
};
use comity_agent_model::lease::target_namespace::TENANT_LABEL;
use comity_agent_model::local_policy::GuestEgress;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;

use super::quota;
use crate::DonorLease;
use crate::lease_nodes::is_counted_by_node;
use crate::lease_sharing::LeaseSharing;

/// Label with the borrowing cluster.
const ORIGIN_LABEL: &str = "comity.dev/origin";
/// The tenant's ServiceAccount; a fixed name, so that the agent's own role can be limited to it.
pub(crate) const SERVICE_ACCOUNT: &str = "comity-tenant";
/// The default ServiceAccount of every namespace.
pub(crate) const DEFAULT_SERVICE_ACCOUNT: &str = "default";
/// The tenant's ClusterRole; bound in the lease's namespace only.
pub(crate) const TENANT_ROLE: &str = "comity-tenant";
/// The binding of that role.
pub(crate) const ROLE_BINDING: &str = "comity-tenant";
/// The Secret that the tenant's tokens are bound to: its deletion voids them.
pub(crate) const TOKEN_SECRET: &str = "comity-token";

/// The policy of the namespace's network.
const NETWORK_POLICY: &str = "comity-lease";

/// The manifest that operators apply; shared with the code, so that they cannot drift apart.
const TENANT_ROLE_MANIFEST: &str = include_str!("../../../../deploy/agent/tenant-role.yaml");

/// Labels of everything in the namespace.
pub(crate) fn labels(lease: &DonorLease) -> BTreeMap<String, String> {
    let id = lease.lease_id.to_string();
    own_labels([(LEASE_LABEL, id.as_str()), (TENANT_LABEL, &lease.tenant), (ORIGIN_LABEL, &lease.origin)])
}

/// Metadata of an object in the lease's namespace.
pub(crate) fn metadata(lease: &DonorLease, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace_name(lease.lease_id)),
        labels: Some(labels(lease)),
        ..ObjectMeta::default()
    }
}

/// The namespace, under Pod Security `restricted`, with the limits of a share if HAMi enforces them.
pub(crate) fn namespace(lease: &DonorLease, sharing: &LeaseSharing, guests: &GuestLabels) -> Namespace {
    let mut labels = labels(lease);
    for mode in ["enforce", "audit", "warn"] {
        labels.insert(format!("pod-security.kubernetes.io/{mode}"), "restricted".to_owned());
    }
    labels.extend(guests.labels().into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())));
    if is_counted_by_node(lease) {
        labels.insert(LEASE_NODES_LABEL.to_owned(), "several".to_owned());
    }
    let resource = (GPU_RESOURCE_ANNOTATION.to_owned(), lease.placement.resource_name.clone());
    let mut annotations = sharing.hami().map(HamiShare::annotations).unwrap_or_default();
    let devices: Vec<String> = quota::lent_resources(lease, sharing).into_iter().collect();
    annotations.extend([resource, (DEVICES_ANNOTATION.to_owned(), devices.join(","))]);
    let metadata = ObjectMeta {
        name: Some(namespace_name(lease.lease_id)),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    Namespace { metadata, ..Namespace::default() }
}

/// Denies ingress from outside the namespace, and egress except to its own pods, DNS and the donor's open networks.
pub(crate) fn network_policy(lease: &DonorLease, egress: &GuestEgress) -> NetworkPolicy {
    let everything = LabelSelector::default();
    let same_namespace = NetworkPolicyPeer { pod_selector: Some(everything.clone()), ..NetworkPolicyPeer::default() };
    let ingress =
        NetworkPolicyIngressRule { from: Some(vec![same_namespace.clone()]), ..NetworkPolicyIngressRule::default() };
    NetworkPolicy {
        metadata: metadata(lease, NETWORK_POLICY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(everything),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![ingress]),
            egress: Some(egress_rules(vec![same_namespace], egress)),
        }),
    }
}

/// A ServiceAccount whose token is not mounted automatically.
pub(crate) fn service_account(lease: &DonorLease, name: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(lease, name),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// Binds the tenant's role, in this namespace only.
pub(crate) fn role_binding(lease: &DonorLease) -> RoleBinding {
    RoleBinding {
        metadata: metadata(lease, ROLE_BINDING),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: TENANT_ROLE.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: SERVICE_ACCOUNT.to_owned(),
            namespace: Some(namespace_name(lease.lease_id)),
            ..Subject::default()
        }]),
    }
}

/// The Secret that tokens are bound to; empty, so that reading it reveals nothing.
pub(crate) fn token_secret(lease: &DonorLease) -> Secret {
    Secret {
        metadata: metadata(lease, TOKEN_SECRET),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::<String, ByteString>::new()),
        ..Secret::default()
    }
}

/// The tenant's role.
pub(crate) fn tenant_role() -> ClusterRole {
    serde_saphyr::from_str(TENANT_ROLE_MANIFEST).expect("a test reads this constant text")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_role_gives_no_way_to_more_rights() {
        let role = tenant_role();
        assert_eq!(role.metadata.name.as_deref(), Some(TENANT_ROLE));
        let forbidden = [
            "roles",
            "rolebindings",
            "serviceaccounts",
            "serviceaccounts/token",
            "networkpolicies",
            "namespaces",
            "nodes",
            "limitranges",
            "*",
            "pods/ephemeralcontainers",
            "resourceclaims/status",
            "resourceclaimtemplates",
            "endpoints",
            "endpointslices",
            "ingresses",
            "gateways",
            "httproutes",
        ];
        for rule in role.rules.unwrap() {
            let resources = rule.resources.unwrap();
            assert!(resources.iter().all(|resource| !forbidden.contains(&resource.as_str())), "{resources:?}");
            assert!(
                !rule
                    .verbs
                    .iter()
                    .any(|verb| verb == "*" || verb == "bind" || verb == "escalate" || verb == "impersonate")
            );
            if resources.iter().any(|resource| ["resourcequotas", "events", "resourceclaims"].contains(&&**resource)) {
                assert!(rule.verbs.iter().all(|verb| ["get", "list", "watch"].contains(&verb.as_str())));
            }
        }
    }
}
