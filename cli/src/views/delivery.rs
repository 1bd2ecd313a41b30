//! How a lease is delivered to the origin, and what a pod needs to run on a virtual node.

use std::collections::BTreeMap;

use comity_agent_model::lease_id::LEASE_LABEL;
use comity_proto::v1;
use serde::Serialize;

/// Taint of every Liqo virtual node.
const LIQO_TAINT: &str = "virtual-node.liqo.io/not-allowed";

/// How a lease is delivered to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// A delivery that this version of `comity` does not know.
    Unknown,
    /// A namespace on the donor and a kubeconfig at the origin.
    Namespace,
    /// A node in the origin's cluster.
    VirtualNode,
}

impl Delivery {
    /// The JSON value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Namespace => "namespace",
            Self::VirtualNode => "virtual-node",
        }
    }
}

impl From<v1::Delivery> for Delivery {
    fn from(delivery: v1::Delivery) -> Self {
        match delivery {
            v1::Delivery::Unspecified => Self::Unknown,
            v1::Delivery::Namespace => Self::Namespace,
            v1::Delivery::VirtualNode => Self::VirtualNode,
        }
    }
}

/// What a pod's spec needs to run on a lease's virtual node.
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
    /// What pods of `namespace` on the origin need for this lease's node.
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
