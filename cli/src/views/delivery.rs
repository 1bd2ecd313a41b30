//! The fields that a pod's spec needs to run on a virtual node.

use std::collections::BTreeMap;

use comity_agent_model::lease::lease_id::LEASE_LABEL;
use serde::Serialize;

/// Taint of every Liqo virtual node.
const LIQO_TAINT: &str = "virtual-node.liqo.io/not-allowed";

/// The fields that a pod's spec needs to run on a lease's virtual node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNode {
    /// Namespace on the origin whose pods may run there.
    pub namespace: String,
    /// `nodeSelector` of the node.
    pub node_selector: BTreeMap<&'static str, String>,
    /// `tolerations` of its taints.
    pub tolerations: Vec<Toleration>,
}

/// A Kubernetes toleration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint.
    pub key: &'static str,
    /// `Equal` or `Exists`.
    pub operator: &'static str,
    /// Value of the taint, for `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect of the taint.
    pub effect: &'static str,
}

impl VirtualNode {
    /// For pods of `namespace` on the origin.
    pub(super) fn new(lease: &str, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            node_selector: BTreeMap::from([(LEASE_LABEL, lease.to_owned())]),
            tolerations: vec![
                Toleration { key: LEASE_LABEL, operator: "Equal", value: Some(lease.to_owned()), effect: "NoSchedule" },
                Toleration { key: LIQO_TAINT, operator: "Exists", value: None, effect: "NoExecute" },
            ],
        }
    }

    /// The selector, for people.
    pub(super) fn selector_text(&self) -> String {
        let pairs: Vec<String> = self.node_selector.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        pairs.join(", ")
    }

    /// The tolerations, for people.
    pub(super) fn tolerations_text(&self) -> String {
        let text = |toleration: &Toleration| match &toleration.value {
            Some(value) => format!("{}={value}:{}", toleration.key, toleration.effect),
            None => format!("{}:{}", toleration.key, toleration.effect),
        };
        self.tolerations.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}
