//! How a lease reaches the origin.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a lease reaches the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// A namespace on the donor, and a kubeconfig for it at the origin.
    #[default]
    Namespace,
    /// A virtual node in the origin's cluster: pods scheduled on it run on the donor.
    VirtualNode,
}

impl Delivery {
    /// The text form, as in "virtual-node".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::VirtualNode => "virtual-node",
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
