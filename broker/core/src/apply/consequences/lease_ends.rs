//! How a lease ends.

use comity_types::{EndReason, LeaseId, LeaseState, Side};

use crate::model::lease::SideState;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Starts ending a lease; `reason` decides what happens to its request.
    pub(crate) fn end_lease(&mut self, id: LeaseId, reason: EndReason, message: &str) {
        let Some(lease) = self.state().leases.get(&id) else { return };
        if !lease.state.may_become(LeaseState::Ending) {
            return;
        }
        let (request, peering, was) = (lease.request, lease.peering, lease.state);
        let (replaces, replaced_by, counted) = (lease.moved_from, lease.moved_to, lease.meter.counts());
        let now = self.now();
        self.change_lease(id, |lease| {
            lease.state = LeaseState::Ending;
            lease.end_reason = Some(reason);
            lease.ending_at = Some(now);
            message.clone_into(&mut lease.message);
        });
        self.drop_envelopes(peering, |key| key.lease == Some(id));
        let next = replaced_by.filter(|next| self.takes_over(*next, reason));
        self.detach_from_request(request, id, was, next, message);
        self.unlink_from_chain(id, replaces, next);
        if let Some(next) = next {
            self.hand_over_meter(next, counted);
        }
        if let Some(left) = replaced_by.filter(|_| next.is_none()) {
            self.end_lease(left, reason, message);
        }
        self.clean_for_evicted(id);
        self.end_if_both_clean(id);
        self.close_if_revoked(peering);
    }

    /// Records that one side of a lease has removed everything.
    pub(crate) fn report_clean(&mut self, id: LeaseId, side: Side) {
        self.change_lease(id, |lease| match side {
            Side::Origin => lease.origin_side = SideState::Clean,
            Side::Donor => lease.donor_side = SideState::Clean,
        });
        self.end_if_both_clean(id);
    }

    /// Ends a lease that nobody uses any more. A suspended origin cannot report: the donor's word is enough, and the
    /// origin's agent removes what is left once it is back. A suspended donor is waited for, as only it knows when
    /// its GPUs are free.
    pub(super) fn end_if_both_clean(&mut self, id: LeaseId) {
        let Some(lease) = self.state().leases.get(&id) else { return };
        let origin_clean = lease.origin_side == SideState::Clean || self.state().check_part(&lease.origin).is_err();
        let clean = lease.donor_side == SideState::Clean && origin_clean;
        if lease.state != LeaseState::Ending || !clean {
            return;
        }
        let (peering, now) = (lease.peering, self.now());
        self.change_lease(id, |lease| {
            lease.state = LeaseState::Ended;
            lease.ended_at = Some(now);
        });
        self.change_peering(peering, |peering| {
            peering.leases.remove(&id);
            if peering.leases.is_empty() {
                peering.idle_since = Some(now);
            }
        });
    }
}
