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

impl DeliveryKind {
    /// The delivery of a lease; unspecified, by an old broker, means a namespace.
    #[must_use]
    pub fn of(lease: &v1::Lease) -> Self {
        match lease.delivery() {
            v1::Delivery::VirtualNode => Self::VirtualNode,
            v1::Delivery::Namespace | v1::Delivery::Unspecified => Self::Namespace,
        }
    }
}
