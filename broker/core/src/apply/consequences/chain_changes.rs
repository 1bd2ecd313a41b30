//! Leases of one request that replace one another.

use comity_types::{EndReason, LeaseId, LeaseState};

use crate::model::lease::Lease;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Removes an ending lease from its replacement chain: its successor now replaces its predecessor.
    pub(crate) fn unlink_from_chain(&mut self, id: LeaseId, before: Option<LeaseId>, next: Option<LeaseId>) {
        let waits = |lease: &Lease| lease.moved_to == Some(id) && lease.state == LeaseState::Reclaiming;
        let Some(before) = before.filter(|before| self.state().leases.get(before).is_some_and(waits)) else { return };
        self.change_lease(before, |lease| lease.moved_to = next);
        if let Some(next) = next {
            self.change_lease(next, |lease| lease.moved_from = Some(before));
            self.change_lease(id, |lease| lease.moved_to = None);
        }
        self.resume_meter(before);
    }

    /// Whether the successor of an ending lease takes over the request: the donor ended the lease, and the successor
    /// has not failed itself. If the origin ended it, the successor ends too, but after its own notice.
    pub(crate) fn takes_over(&self, next: LeaseId, reason: EndReason) -> bool {
        let lives = |lease: &Lease| lease.state.is_held() || lease.state.is_in_force();
        let goes_on = reason.retries() || reason == EndReason::OriginRevoked;
        goes_on && self.state().leases.get(&next).is_some_and(lives)
    }

    /// Cancels the reclaim of a lease, and ends the lease that was to replace it.
    pub(crate) fn cancel_reclaim(&mut self, id: LeaseId) {
        let Some(lease) = self.state().leases.get(&id).filter(|lease| lease.state == LeaseState::Reclaiming) else {
            return;
        };
        let (request, replaced_by, now) = (lease.request, lease.moved_to, self.now());
        self.change_lease(id, |lease| {
            lease.state = LeaseState::Active;
            lease.restart_idle_time(now);
            lease.reclaim = None;
            lease.moved_to = None;
            lease.message.clear();
        });
        if let Some(next) = replaced_by {
            // It named the replacement.
            self.change_request(request, |request| {
                let names: Vec<String> = request.leases().map(|lease| lease.to_string()).collect();
                request.message = format!("served by {}", names.join(", "));
            });
            self.end_lease(next, EndReason::NotNeeded, &format!("{id} stays, which it was to replace"));
            self.resume_meter(id);
        }
    }
}
