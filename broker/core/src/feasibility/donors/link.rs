//! The network between an origin and a donor.

use comity_types::{PeeringId, PeeringState};

use crate::feasibility::donors::gravity::round_trip;
use crate::model::peering::Peering;

/// The network between an origin and a donor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Whether their peering is established.
    pub(crate) warm: bool,
    /// In [doublings](round_trip).
    pub(crate) round_trip: u32,
}

impl Link {
    pub(crate) fn of(peering: Option<(PeeringId, &Peering)>) -> Self {
        let warm = peering.is_some_and(|(_, peering)| peering.state == PeeringState::Established);
        Self { warm, round_trip: round_trip(peering.map_or(0, |(_, peering)| peering.rtt_us)) }
    }
}
