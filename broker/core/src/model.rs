//! Types and units. Nothing here knows the [`State`](crate::State).

pub mod blob;
pub mod limits;
pub(crate) mod records;
pub mod refusal;
pub(crate) mod resources;
pub mod settings;
pub mod time;

pub use records::{
    actor, broker_record, cluster, envelope, health, idempotency, invite, keys, lease, member_certificate, meter,
    peering, policy_record, proposal, provenance, reclaim, reply, request, revocation,
};
pub use resources::{amounts, data, demand, inventory, mig, network, placement, work};
