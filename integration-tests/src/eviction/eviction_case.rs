//! Who is revoked, and whether the donor is there.

use std::fmt;
use std::str::FromStr;

/// A case of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionCase {
    /// A user is revoked.
    UserRevoked,
    /// The borrowing cluster is evicted.
    OriginEvicted,
    /// The same, while the donor's agent is stopped (SIGSTOP); it goes on later.
    DonorStopped,
    /// The same, while the donor's agent is dead (SIGKILL); it starts again later.
    DonorKilled,
    /// The borrowing institution is suspended.
    InstitutionSuspended,
    /// The lending cluster is evicted.
    DonorEvicted,
}

impl EvictionCase {
    /// All cases. The evicted donor is last: it keeps the lease's namespace, which a later lease would meet.
    pub const ALL: [Self; 6] = [
        Self::UserRevoked,
        Self::OriginEvicted,
        Self::DonorStopped,
        Self::DonorKilled,
        Self::InstitutionSuspended,
        Self::DonorEvicted,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::UserRevoked => "user-revoked",
            Self::OriginEvicted => "origin-evicted",
            Self::DonorStopped => "donor-stopped",
            Self::DonorKilled => "donor-killed",
            Self::InstitutionSuspended => "institution-suspended",
            Self::DonorEvicted => "donor-evicted",
        }
    }
}

impl fmt::Display for EvictionCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EvictionCase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let case = Self::ALL.into_iter().find(|case| case.name() == text.trim());
        case.ok_or_else(|| format!("write some of {}, separated by commas", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for case in EvictionCase::ALL {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("nobody".parse::<EvictionCase>().is_err_and(|error| error.contains("user-revoked, origin-evicted")));
    }
}
