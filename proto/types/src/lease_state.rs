//! States of a lease and their legal transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Capacity is held; the handshake has not begun.
    Placed,
    /// The clusters run the handshake, and the donor prepares the delivery.
    Connecting,
    /// The origin holds a working credential.
    Active,
    /// One side is silent; nothing is torn down because of that.
    Suspect,
    /// Under reclaim: in force until its deadline or until its work is saved.
    Reclaiming,
    /// Both sides are removing what they made.
    Ending,
    /// Both sides reported clean.
    Ended,
}

impl LeaseState {
    /// The table of legal transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use LeaseState::{Active, Connecting, Ended, Ending, Placed, Reclaiming, Suspect};
        matches!(
            (self, next),
            (Placed, Connecting | Active | Ending)
                | (Connecting, Active | Ending)
                | (Active, Suspect | Reclaiming | Ending)
                | (Suspect, Active | Reclaiming | Ending)
                | (Reclaiming, Active | Suspect | Ending)
                | (Ending, Ended)
        )
    }

    /// Whether it must still become active within its hold.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Placed | Self::Connecting)
    }

    /// Whether the tenant may use it.
    #[must_use]
    pub const fn is_in_force(self) -> bool {
        matches!(self, Self::Active | Self::Suspect | Self::Reclaiming)
    }

    /// Whether it is to exist on both sides.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        self.is_held() || self.is_in_force()
    }

    /// The text form, as in "reclaiming".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Connecting => "connecting",
            Self::Active => "active",
            Self::Suspect => "suspect",
            Self::Reclaiming => "reclaiming",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseState::{Active, Connecting, Ended, Ending, Placed, Reclaiming, Suspect};

    #[test]
    fn ended_is_final_and_reached_only_through_ending() {
        for state in [Placed, Connecting, Active, Suspect, Reclaiming, Ending, Ended] {
            assert!(!Ended.may_become(state));
            assert_eq!(state.may_become(Ended), state == Ending);
            assert_eq!(serde_json::to_value(state).ok(), Some(state.as_str().into()));
        }
    }
}
