//! What reservations leave to others.

use comity_policy::LeaseUse;

use crate::feasibility::snapshot::{Held, Snapshot};
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::reserve::{Start, end_of_start};

/// What is free for those who stay.
pub(crate) struct ReservedView<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    pub(crate) starts: Vec<ReservedStart<'a>>,
}

/// What is kept free for one request.
pub(crate) struct ReservedStart<'a> {
    pub(crate) request: &'a Request,
    /// What is kept, and when it is taken: who takes of it must be gone before.
    pub(crate) start: Start,
    /// When it is taken at the latest. Room that is being made lets nobody pass before.
    pub(crate) begins: Timestamp,
}

impl ReservedStart<'_> {
    /// Counts its parts in, from now on; what is held so, and until when.
    pub(crate) fn take<'k>(&'k self, snapshot: &mut Snapshot<'k>, held: &mut Vec<Held<'k>>) {
        let spec = &self.request.spec;
        let tenant = spec.tenant.as_str();
        let institution = snapshot.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        let end = end_of_start(snapshot.state, self.begins, spec.duration);
        for FeasiblePlacement { placement, class, agreement, .. } in &self.start.found {
            let agreement = agreement.as_deref();
            snapshot.take(tenant, class, agreement, placement);
            let (donor, class, gpus_milli) = (placement.donor.as_str(), class.as_str(), placement.milli());
            held.push(Held {
                end,
                counts: LeaseUse { tenant, institution, donor, class, agreement, gpus_milli, replaced: false },
                placement,
            });
        }
    }
}
