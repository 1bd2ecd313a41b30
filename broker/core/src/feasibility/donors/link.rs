//! The network between an origin and a donor.

use std::cmp::Reverse;

use crate::feasibility::donors::gravity::{distance, round_trip};
use crate::feasibility::donors::promise::{Member, Promise};
use crate::feasibility::snapshot::View;
use crate::feasibility::verdict::Candidate;
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, PeeringId};
use crate::model::peering::{Peering, PeeringState};
use crate::model::request::Request;
use crate::state::State;

/// What lies between an origin and a donor.
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
