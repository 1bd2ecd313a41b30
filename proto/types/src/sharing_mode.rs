//! How devices are shared, and how far that keeps the work on them apart.

use serde::{Deserialize, Serialize};

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingMode {
    /// One tenant at a time.
    Exclusive,
    /// Equal replicas by time-slicing.
    TimeSlicing,
    /// Equal shares by CUDA MPS.
    Mps,
    /// MIG instances.
    Mig,
    /// Any fraction of the device, as with HAMi.
    Fractional,
}

impl SharingMode {
    /// The value that policy selectors see as `device.sharing`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::TimeSlicing => "time-slicing",
            Self::Mps => "mps",
            Self::Mig => "mig",
            Self::Fractional => "fractional",
        }
    }

    /// The isolation of a share on such a device.
    #[must_use]
    pub const fn isolation(self) -> Isolation {
        match self {
            Self::TimeSlicing => Isolation::None,
            Self::Mps | Self::Fractional => Isolation::Memory,
            Self::Exclusive | Self::Mig => Isolation::Hardware,
        }
    }
}

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
    pub const fn as_str(self) -> &'static str {
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
