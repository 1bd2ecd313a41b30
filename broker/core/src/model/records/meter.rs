//! What counts of a lease against quotas of GPU-hours.

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// Whether the GPU-time of a lease counts. It counts once work can begin: when the lease and, for a gang, all first
/// leases are active. Of a lease and its replacement one counts at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meter {
    /// Not yet.
    Waits {
        /// GPUs whose time is reserved for it, in thousandths; for a replacement, those that it has beyond the lease that
        /// it replaces, which still counts.
        reserved_milli: u64,
    },
    /// It counts.
    Counts {
        /// The first moment that is not in the ledger yet.
        since: Timestamp,
    },
    /// Not any more: it has ended, or its replacement counts.
    Stopped,
}

impl Meter {
    /// Whether GPU-time counts.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Self::Counts { .. })
    }
}
