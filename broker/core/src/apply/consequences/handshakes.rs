//! The steps of a peering's handshake.

use std::collections::BTreeSet;

use comity_types::{ClusterId, PeeringId, PeeringState, Side};

use crate::model::peering::Peering;
use crate::model::settings::retry_pause;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// The peering between two clusters that carries leases; proposes one if none exists.
    pub(crate) fn peering_for(&mut self, origin: &ClusterId, donor: &ClusterId) -> PeeringId {
        if let Some((id, _)) = self.state().peering_between(origin, donor) {
            return id;
        }
        let now = self.now();
        self.insert_peering(Peering {
            origin: origin.clone(),
            donor: donor.clone(),
            state: PeeringState::Proposed,
            epoch: 1,
            deadline: Some(now.after(self.settings().handshake_step)),
            retry_at: None,
            failures: 0,
            origin_keys: None,
            donor_keys: None,
            established: BTreeSet::new(),
            closed: BTreeSet::new(),
            leases: BTreeSet::new(),
            idle_since: Some(now),
            rtt_us: 0,
            message: "waiting for both sides' keys".to_owned(),
            revision: 0,
        })
    }

    /// Moves a handshake to its next step and sets that step's deadline.
    pub(crate) fn advance_peering(&mut self, id: PeeringId, next: PeeringState, message: &str) {
        let deadline = next.is_handshaking().then(|| self.now().after(self.settings().handshake_step));
        self.change_peering(id, |peering| {
            peering.state = next;
            peering.deadline = deadline;
            message.clone_into(&mut peering.message);
            if next == PeeringState::Established {
                peering.failures = 0;
            }
        });
    }

    /// Fails a handshake: voids its keys and envelopes, and schedules a retry after a pause.
    pub(crate) fn fail_peering(&mut self, id: PeeringId, message: &str) {
        let now = self.now();
        self.drop_envelopes(id, |_| true);
        self.change_peering(id, |peering| {
            if !peering.state.may_become(PeeringState::Failed) {
                return;
            }
            peering.state = PeeringState::Failed;
            peering.failures = peering.failures.saturating_add(1);
            peering.retry_at = Some(now.after(retry_pause(peering.failures)));
            peering.deadline = None;
            peering.origin_keys = None;
            peering.donor_keys = None;
            peering.established.clear();
            message.clone_into(&mut peering.message);
        });
    }

    /// Takes a peering down: both sides remove its tunnel and keys.
    pub(crate) fn drain_peering(&mut self, id: PeeringId, message: &str) {
        self.drop_envelopes(id, |_| true);
        self.change_peering(id, |peering| {
            peering.state = PeeringState::Draining;
            peering.deadline = None;
            peering.retry_at = None;
            message.clone_into(&mut peering.message);
        });
    }

    /// Records that one side of a draining peering has removed everything.
    pub(crate) fn close_side(&mut self, id: PeeringId, side: Side) {
        self.change_peering(id, |peering| {
            peering.closed.insert(side);
            if peering.closed.len() == 2 {
                peering.state = PeeringState::Closed;
                peering.origin_keys = None;
                peering.donor_keys = None;
            }
        });
    }
}
