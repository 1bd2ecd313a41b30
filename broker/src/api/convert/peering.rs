//! Converts peerings.

use comity_core::PeeringId;
use comity_core::peering::{Peering, PeeringState};
use comity_proto::v1;

use crate::api::convert::time_or_zero;

/// Converts to the API message.
#[must_use]
pub fn to_proto(id: PeeringId, peering: &Peering) -> v1::Peering {
    let state = match peering.state {
        PeeringState::Proposed => v1::PeeringState::Proposed,
        PeeringState::Keys => v1::PeeringState::Keys,
        PeeringState::Authenticating => v1::PeeringState::Authenticating,
        PeeringState::Establishing => v1::PeeringState::Establishing,
        PeeringState::Established => v1::PeeringState::Established,
        PeeringState::Draining => v1::PeeringState::Draining,
        PeeringState::Closed => v1::PeeringState::Closed,
        PeeringState::Failed => v1::PeeringState::Failed,
    };
    v1::Peering {
        id: id.to_string(),
        origin: peering.origin.to_string(),
        donor: peering.donor.to_string(),
        state: state.into(),
        epoch: peering.epoch,
        deadline_ms: time_or_zero(peering.deadline),
        retry_at_ms: time_or_zero(peering.retry_at),
        message: peering.message.clone(),
        leases: peering.leases.iter().map(ToString::to_string).collect(),
        rtt_us: peering.rtt_us,
        idle_since_ms: time_or_zero(peering.idle_since),
        revision: peering.revision,
    }
}
