//! Isolation of a share from other work on its device.

use serde::{Deserialize, Serialize};

use crate::model::inventory::Sharing;

/// Isolation of a share from other work on its device. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// None.
    #[default]
    None,
    /// Other work cannot take the share's memory.
    Memory,
    /// Memory, compute and faults are separate in hardware.
    Hardware,
}

impl Isolation {
    /// The value that policy selectors see as `device.isolation`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory => "memory",
            Self::Hardware => "hardware",
        }
    }

    /// Whether the share needs no isolation.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Sharing {
    /// The isolation of a share on such a device.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::TimeSlicing { .. } => Isolation::None,
            Self::Mps { .. } | Self::Fractional { .. } => Isolation::Memory,
            Self::Exclusive | Self::Mig { .. } => Isolation::Hardware,
        }
    }
}
