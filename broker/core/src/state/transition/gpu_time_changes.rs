//! Which leases count against quotas of GPU-hours.

use comity_types::LeaseId;

use crate::model::meter::Meter;
use crate::model::time::Timestamp;
use crate::state::Records;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Counts the GPU-time of a lease from `since` on.
    pub(crate) fn start_meter(&mut self, id: LeaseId, since: Timestamp) {
        if self.state.leases.get(&id).is_some_and(|lease| matches!(lease.meter, Meter::Waits { .. })) {
            self.change_lease(id, |lease| lease.meter = Meter::Counts { since });
        }
    }

    /// Stops counting a lease: its replacement counts instead.
    pub(crate) fn stop_meter(&mut self, id: LeaseId) {
        if self.state.leases.get(&id).is_some_and(|lease| lease.meter.counts()) {
            self.change_lease(id, |lease| lease.meter = Meter::Stopped);
        }
    }

    /// Counts a lease again whose replacement failed.
    pub(crate) fn resume_meter(&mut self, id: LeaseId) {
        let (now, leases) = (self.now, &self.state.leases);
        let Some(lease) = leases.get(&id) else { return };
        let next = lease.moved_to.and_then(|next| leases.get(&next));
        if lease.meter == Meter::Stopped && lease.state.is_in_force() && !next.is_some_and(|it| it.meter.counts()) {
            self.change_lease(id, |lease| lease.meter = Meter::Counts { since: now });
            self.tolerate_gpu_time();
        }
    }

    /// Counts `next` in the place of a lease that has ended; `counted` tells whether that one did until now.
    pub(crate) fn hand_over_meter(&mut self, next: LeaseId, counted: bool) {
        let now = self.now;
        let waits = |meter: Meter| matches!(meter, Meter::Waits { .. });
        if self.state.leases.get(&next).is_some_and(|lease| waits(lease.meter)) {
            self.change_lease(next, |lease| {
                let reserved_milli = lease.placement.milli();
                lease.meter = if counted { Meter::Counts { since: now } } else { Meter::Waits { reserved_milli } };
            });
        }
    }

    /// Tolerates GPU-time above limits that no grant caused.
    pub(crate) fn tolerate_gpu_time(&mut self) {
        let Records { policy, gpu_time, derived, .. } = self.records();
        gpu_time.tolerate(policy.as_ref().map(|record| &*record.bundle), &derived.gpu_time);
    }
}
