//! The steps of a peering's handshake.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, PeeringId, PeeringState, Side};

use crate::model::lease::Lease;
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
        if next == PeeringState::Established {
            self.tell_waiting_leases(id, |lease| lease.waits_for().to_owned());
        }
    }

    /// Fails a handshake: voids its keys and envelopes, and schedules a retry after a pause. The leases that wait for it
    /// say why.
    pub(crate) fn fail_peering(&mut self, id: PeeringId, message: &str) {
        let now = self.now();
        self.drop_envelopes(id, |_| true);
        if !self.state().peerings.get(&id).is_some_and(|peering| peering.state.may_become(PeeringState::Failed)) {
            return;
        }
        self.change_peering(id, |peering| {
            peering.state = PeeringState::Failed;
            peering.failures = peering.failures.saturating_add(1);
            peering.retry_at = Some(now.after(retry_pause(peering.failures)));
            peering.deadline = None;
            peering.origin_keys = None;
            peering.donor_keys = None;
            peering.established.clear();
            message.clone_into(&mut peering.message);
        });
        self.tell_waiting_leases(id, |_| failed_handshake(id, message));
    }

    /// Writes into the leases that wait for a peering how it stands.
    fn tell_waiting_leases(&mut self, id: PeeringId, message: impl Fn(&Lease) -> String) {
        let state = self.state();
        let leases = state.peerings.get(&id).into_iter().flat_map(|peering| &peering.leases);
        let told = leases.filter_map(|id| {
            let lease = state.leases.get(id).filter(|lease| lease.state.is_held())?;
            Some((*id, message(lease)))
        });
        let told: Vec<(LeaseId, String)> = told.collect();
        for (lease, message) in told {
            self.change_lease(lease, |lease| lease.message = message);
        }
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

/// The message of a lease that waits for a peering whose handshake failed for a reason.
pub(crate) fn failed_handshake(id: PeeringId, reason: &str) -> String {
    format!("the handshake of {id} failed and is tried again: {reason}")
}
