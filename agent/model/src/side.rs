//! The two sides of a peering and of a lease.

use comity_proto::v1;
use serde::{Deserialize, Serialize};

/// Which side of a peering or lease this cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Borrows.
    Origin,
    /// Lends.
    Donor,
}

impl Side {
    /// The one across.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Origin => Self::Donor,
            Self::Donor => Self::Origin,
        }
    }
}

impl From<Side> for v1::Side {
    fn from(side: Side) -> Self {
        match side {
            Side::Origin => Self::Origin,
            Side::Donor => Self::Donor,
        }
    }
}
