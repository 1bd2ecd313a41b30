//! Amounts of the resources that fair sharing counts.

use serde::{Deserialize, Serialize};

use crate::model::demand::RequestSpec;
use crate::model::placement::Placement;

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Thousandths of GPUs.
    pub gpu_milli: u64,
    /// Thousandths of cores.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
}

impl Amounts {
    /// The amounts that a placement takes.
    #[must_use]
    pub fn of(placement: &Placement) -> Self {
        Self { gpu_milli: placement.milli(), cpu_milli: placement.cpu_milli(), memory_mib: placement.memory_mib() }
    }

    /// The amounts that a request needs, before its placement is known.
    #[must_use]
    pub fn asked(spec: &RequestSpec) -> Self {
        let count = spec.least_shares();
        Self {
            gpu_milli: spec.nominal_milli(),
            cpu_milli: spec.gpus.cpu_milli_per_gpu.saturating_mul(count),
            memory_mib: spec.gpus.memory_mib_per_gpu.saturating_mul(count),
        }
    }

    /// Whether all amounts are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Sum of both; saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// Difference of both; saturates at zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }

    /// Combines each resource of both with `join`.
    #[must_use]
    pub(crate) fn combine(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            gpu_milli: join(self.gpu_milli, other.gpu_milli),
            cpu_milli: join(self.cpu_milli, other.cpu_milli),
            memory_mib: join(self.memory_mib, other.memory_mib),
        }
    }
}
