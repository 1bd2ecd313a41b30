//! Ids of the objects in a desired state.

use comity_types::{LeaseId, PeeringId};

/// A lease or a peering, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectId {
    /// A lease.
    Lease(LeaseId),
    /// A peering.
    Peering(PeeringId),
}
