//! The capacity that reservations leave to other requests.

use comity_policy::LeaseUse;

use crate::feasibility::snapshot::{HeldCapacity, Snapshot};
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::reserve::{Start, end_if_started};

/// The snapshot with all reservations taken: free capacity for requests that run past a reserved start.
pub(crate) struct ReservedView<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    pub(crate) starts: Vec<ReservedStart<'a>>,
}

/// The reservation of one request.
pub(crate) struct ReservedStart<'a> {
    pub(crate) request: &'a Request,
    /// Reserved capacity and the expected start; backfilled requests must end before it.
    pub(crate) start: Start,
    /// The latest start. Room that is being reclaimed permits no backfill until then.
    pub(crate) starts_by: Timestamp,
}

impl ReservedStart<'_> {
    /// Takes the reserved parts in `snapshot` and adds them to `held` with their latest end.
    pub(crate) fn take<'k>(&'k self, snapshot: &mut Snapshot<'k>, held: &mut Vec<HeldCapacity<'k>>) {
        let spec = &self.request.spec;
        let tenant = spec.tenant.as_str();
        let institution = snapshot.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        let end = end_if_started(snapshot.state, self.starts_by, spec.duration);
        for FeasiblePlacement { placement, class, agreement, .. } in &self.start.found {
            let agreement = agreement.as_deref();
            snapshot.take(tenant, class, agreement, placement);
            let (donor, class, gpus_milli) = (placement.donor.as_str(), class.as_str(), placement.milli());
            held.push(HeldCapacity {
                end,
                counts: LeaseUse { tenant, institution, donor, class, agreement, gpus_milli, replaced: false },
                placement,
            });
        }
    }
}
