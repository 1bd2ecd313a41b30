//! What becomes of leases in force whose permission ends.

use serde::{Deserialize, Serialize};

/// What becomes of leases in force when their permission ends: a policy withdraws it, a cluster's part in the federation
/// ends, or the user who requested them is revoked.
///
/// Ordered from the loosest to the tightest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseTreatment {
    /// They run until the end of their term and cannot be renewed. A revoked user's leases stay as they are: they are
    /// the tenant's.
    Finish,
    /// They are reclaimed with the notice of the donor.
    Drain,
    /// They end at once.
    Stop,
}

impl LeaseTreatment {
    /// All treatments, from the loosest to the tightest.
    pub const ALL: [Self; 3] = [Self::Finish, Self::Drain, Self::Stop];

    /// Its name in policy and in the CLI, as in "drain".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Drain => "drain",
            Self::Stop => "stop",
        }
    }
}
