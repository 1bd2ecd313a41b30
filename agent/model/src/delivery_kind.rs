//! How a lease reaches the origin.

use comity_proto::v1;
use serde::{Deserialize, Serialize};

/// How a lease reaches the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryKind {
    /// A namespace of the donor, and a kubeconfig for it.
    #[default]
    Namespace,
    /// A node of the origin that stands for the leased resources.
    VirtualNode,
}

impl From<v1::Delivery> for DeliveryKind {
    /// Unspecified means a namespace.
    fn from(delivery: v1::Delivery) -> Self {
        match delivery {
            v1::Delivery::VirtualNode => Self::VirtualNode,
            v1::Delivery::Namespace | v1::Delivery::Unspecified => Self::Namespace,
        }
    }
}

impl From<DeliveryKind> for v1::Delivery {
    fn from(kind: DeliveryKind) -> Self {
        match kind {
            DeliveryKind::VirtualNode => Self::VirtualNode,
            DeliveryKind::Namespace => Self::Namespace,
        }
    }
}
