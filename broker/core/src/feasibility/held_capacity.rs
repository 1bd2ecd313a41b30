//! Capacity that is free from a known end on.

use comity_policy::LeaseUse;
use comity_types::LeaseId;

use crate::model::lease::Lease;
use crate::model::placement::Placement;
use crate::model::time::Timestamp;

/// Capacity held until a known end: by a lease, or by a placement of this plan.
#[derive(Clone)]
pub(crate) struct HeldCapacity<'p> {
    /// The latest end without renewal.
    pub(crate) end: Timestamp,
    /// Usage that counts against limits.
    pub(crate) counts: LeaseUse<'p>,
    pub(crate) placement: &'p Placement,
    /// The lease that holds it; `None` if this plan does.
    pub(crate) lease: Option<LeaseId>,
}

impl<'p> HeldCapacity<'p> {
    /// The capacity of a lease that ends at `end`.
    pub(crate) fn of_lease(id: LeaseId, lease: &'p Lease, end: Timestamp) -> Self {
        Self { end, counts: lease.as_use(), placement: &lease.placement, lease: Some(id) }
    }
}
