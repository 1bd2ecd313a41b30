//! Parts of a placement that a donor enforces on a node. The kubelet chooses the rest.

use serde::{Deserialize, Serialize};

/// Parts of a placement that a donor enforces on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Enforcement {
    /// Whether pods get exactly the devices of the placement.
    pub devices: bool,
    /// Whether CPU and memory of a container come from the NUMA node of its devices.
    pub numa: bool,
}

impl Enforcement {
    /// Everything.
    pub const ALL: Self = Self { devices: true, numa: true };

    /// Whether the donor enforces nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
