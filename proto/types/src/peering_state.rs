//! States of a peering and their legal transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// State of a peering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeeringState {
    /// Waits for both sides' keys.
    Proposed,
    /// One side has sent its keys.
    Keys,
    /// Both sides have sent their keys; the pre-shared key is exchanged and proved.
    Authenticating,
    /// Tunnels are coming up.
    Establishing,
    /// Both sides have seen the tunnel's handshake.
    Established,
    /// Idle for too long.
    Draining,
    /// Everything is removed.
    Closed,
    /// A step failed; retried with fresh keys after a pause.
    Failed,
}

impl PeeringState {
    /// The table of legal transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use PeeringState::{Authenticating, Closed, Draining, Established, Establishing, Failed, Keys, Proposed};
        matches!(
            (self, next),
            (Proposed, Keys | Failed | Draining)
                | (Keys, Authenticating | Failed | Draining)
                | (Authenticating, Establishing | Failed | Draining)
                | (Establishing, Established | Failed | Draining)
                | (Established, Failed | Draining)
                | (Failed, Proposed | Draining)
                | (Draining, Closed)
        )
    }

    /// Whether it accepts new leases.
    #[must_use]
    pub const fn accepts_leases(self) -> bool {
        !matches!(self, Self::Draining | Self::Closed)
    }

    /// Whether a step with a deadline is in progress.
    #[must_use]
    pub const fn is_handshaking(self) -> bool {
        matches!(self, Self::Proposed | Self::Keys | Self::Authenticating | Self::Establishing)
    }

    /// The text form, as in "established".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Keys => "keys",
            Self::Authenticating => "authenticating",
            Self::Establishing => "establishing",
            Self::Established => "established",
            Self::Draining => "draining",
            Self::Closed => "closed",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for PeeringState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
