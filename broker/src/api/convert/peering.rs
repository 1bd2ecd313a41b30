//! Converts peerings.

use comity_core::peering::Peering;
use comity_proto::v1;
use comity_types::PeeringId;

use crate::api::convert::time_or_zero;

/// Converts to the API message.
#[must_use]
pub fn to_proto(id: PeeringId, peering: &Peering) -> v1::Peering {
    v1::Peering {
        id: id.to_string(),
        origin: peering.origin.to_string(),
        donor: peering.donor.to_string(),
        state: v1::PeeringState::from(peering.state).into(),
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
