//! The two sides of a peering and of a lease.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which side of a peering or lease a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The borrower.
    Origin,
    /// The lender.
    Donor,
}

impl Side {
    /// The peer's side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Origin => Self::Donor,
            Self::Donor => Self::Origin,
        }
    }

    /// The text form, as in "origin".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Donor => "donor",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
