//! A peering as the broker describes it to its agents.

use comity_proto::v1;

/// How far a peering has come in its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeeringState {
    /// This version does not know it.
    #[default]
    Unknown,
    /// Both sides are to make keys.
    Proposed,
    /// One side's keys are known.
    Keys,
    /// The pre-shared key is sent and proven.
    Authenticating,
    /// The tunnel is set up.
    Establishing,
    /// The tunnel is up.
    Established,
    /// Being taken down.
    Draining,
    /// Taken down on both sides.
    Closed,
    /// The epoch failed; another one follows.
    Failed,
}

impl From<v1::PeeringState> for PeeringState {
    fn from(state: v1::PeeringState) -> Self {
        match state {
            v1::PeeringState::Unspecified => Self::Unknown,
            v1::PeeringState::Proposed => Self::Proposed,
            v1::PeeringState::Keys => Self::Keys,
            v1::PeeringState::Authenticating => Self::Authenticating,
            v1::PeeringState::Establishing => Self::Establishing,
            v1::PeeringState::Established => Self::Established,
            v1::PeeringState::Draining => Self::Draining,
            v1::PeeringState::Closed => Self::Closed,
            v1::PeeringState::Failed => Self::Failed,
        }
    }
}

/// A peering of two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peering {
    /// "peer-N".
    pub id: String,
    /// Borrowing cluster.
    pub origin: String,
    /// Lending cluster.
    pub donor: String,
    /// How far it has come.
    pub state: PeeringState,
    /// Epoch of its keys.
    pub epoch: u32,
}

/// The broker's directive for a peering, and its knowledge of the other side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeeringDirective {
    /// The peering.
    pub peering: Peering,
    /// The origin's keys of this epoch, once known.
    pub origin_keys: Option<v1::KeyBundle>,
    /// The donor's keys of this epoch, once known.
    pub donor_keys: Option<v1::KeyBundle>,
    /// Identity key with which the other cluster joined, "ed25519:BASE64".
    pub peer_identity_key: String,
    /// Institution of the other cluster.
    pub peer_institution: String,
    /// Whether this side reported its tunnel.
    pub reported_established: bool,
}

impl PeeringDirective {
    /// Converts a directive; `None` for one without a peering.
    #[must_use]
    pub fn read(directive: v1::PeeringDirective) -> Option<Self> {
        let peering = directive.peering?;
        let state = peering.state().into();
        Some(Self {
            peering: Peering {
                id: peering.id,
                origin: peering.origin,
                donor: peering.donor,
                state,
                epoch: peering.epoch,
            },
            origin_keys: directive.origin_keys,
            donor_keys: directive.donor_keys,
            peer_identity_key: directive.peer_identity_key,
            peer_institution: directive.peer_institution,
            reported_established: directive.reported_established,
        })
    }
}
