//! The reservation of one request.

use comity_policy::LeaseUse;

use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::placement::Placement;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::reserve::{Start, end_if_started};

/// The reservation of one request.
pub(crate) struct ReservedStart<'a> {
    pub(crate) request: &'a Request,
    /// Reserved capacity and the expected start; backfilled requests must end before it.
    pub(crate) start: Start,
    /// The latest start. Room that is being reclaimed permits no backfill until then.
    pub(crate) starts_by: Timestamp,
}

impl ReservedStart<'_> {
    /// The reserved parts.
    pub(crate) fn placements(&self) -> impl Iterator<Item = &Placement> {
        self.start.found.iter().map(|part| &part.placement)
    }

    /// Takes the reserved parts in `snapshot`.
    pub(crate) fn take(&self, snapshot: &mut Snapshot<'_>) {
        self.start.found.iter().for_each(|found| snapshot.take_from(self.starts_by, &self.request.spec, found));
    }

    /// The reserved parts with their latest end.
    pub(crate) fn held<'k>(&'k self, snapshot: &Snapshot<'k>) -> impl Iterator<Item = HeldCapacity<'k>> {
        let spec = &self.request.spec;
        let tenant = spec.tenant.as_str();
        let institution = snapshot.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        let end = end_if_started(snapshot.state, self.starts_by, spec.duration);
        self.start.found.iter().map(move |FeasiblePlacement { placement, class, agreement, .. }| {
            let (donor, gpus_milli) = (placement.donor.as_str(), placement.milli());
            let (class, agreement) = (class.as_str(), agreement.as_deref());
            let counts = LeaseUse {
                tenant,
                user: &spec.submitted_by,
                institution,
                donor,
                class,
                agreement,
                gpus_milli,
                replaced: false,
            };
            HeldCapacity { end, counts, placement, lease: None }
        })
    }
}
