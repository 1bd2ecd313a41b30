//! The tenant namespace, in which Liqo keeps all objects of another cluster, for both of its roles.

use comity_agent_kubernetes::call::own_labels;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ObjectMeta;

use crate::{LiqoPeer, PEERING_LABEL, REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL};

/// Prefix of tenant namespaces; the Liqo id follows.
pub const TENANT_NAMESPACE_PREFIX: &str = "liqo-tenant-";
/// Longest DNS label.
const MAX_LABEL_BYTES: usize = 63;
/// Longest Liqo id: its tenant namespace's name is a DNS label too.
pub(crate) const MAX_LIQO_ID: usize = MAX_LABEL_BYTES - TENANT_NAMESPACE_PREFIX.len();

/// The name of the namespace for the cluster with this Liqo id.
pub(crate) fn tenant_namespace_of(liqo_id: &str) -> String {
    format!("{TENANT_NAMESPACE_PREFIX}{liqo_id}")
}

/// The namespace object.
pub(crate) fn tenant_namespace(peer: &LiqoPeer) -> Namespace {
    let labels = own_labels([
        (REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()),
        (TENANT_NAMESPACE_LABEL, "true"),
        (PEERING_LABEL, &peer.peering),
    ]);
    Namespace {
        metadata: ObjectMeta { name: Some(peer.tenant_namespace()), labels: Some(labels), ..ObjectMeta::default() },
        ..Namespace::default()
    }
}
