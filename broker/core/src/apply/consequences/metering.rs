//! When the GPU-time of a lease begins to count.

use comity_types::LeaseId;

use crate::model::meter::Meter;
use crate::model::time::Timestamp;
use crate::state::gang;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Handles a lease that became active. Its GPU-time counts from now on, in place of that of the lease which it
    /// replaces; the first leases of a gang count from the moment at which all are active. `since` is that moment.
    pub(crate) fn begin_metering(&mut self, id: LeaseId, since: Timestamp) {
        let state = self.state();
        let Some(lease) = state.leases.get(&id) else { return };
        if let Some(old) = lease.moved_from {
            self.stop_meter(old);
            self.start_meter(id, since);
            return;
        }
        let request = state.requests.get(&lease.request);
        let gang = request.filter(|request| !lease.joins && request.leases().any(|own| own == id));
        let Some(gang) = gang else {
            self.start_meter(id, since);
            return;
        };
        if !gang::has_started(state, gang) {
            return;
        }
        let waits = gang::parts(state, gang).filter(|(_, lease)| {
            lease.state.is_in_force() && !gang::was_added_later(lease) && matches!(lease.meter, Meter::Waits { .. })
        });
        let all: Vec<LeaseId> = waits.map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.start_meter(id, since));
    }
}
