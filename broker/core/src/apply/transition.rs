//! The primitive changes that commands make, each with its consequences, so that no command forgets one.

pub(crate) mod failures;
pub(crate) mod moves;
pub(crate) mod parts;
pub(crate) mod rebase;

use std::collections::BTreeSet;

use comity_policy::LeaseUse;

use crate::model::envelope::{Envelope, EnvelopeKey};
use crate::model::id::{ClusterId, InstitutionId, LeaseId, PeeringId, RequestId};
use crate::model::keys::Side;
use crate::model::lease::{EndReason, Lease, LeaseState, SideState};
use crate::model::peering::{Peering, PeeringState};
use crate::model::reply::{Actor, Change};
use crate::model::request::Request;
use crate::model::settings::{Settings, retry_pause};
use crate::model::time::Timestamp;
use crate::model::work::WorkType;
use crate::state::timers::Due;
use crate::state::{State, gang};

/// Whether an entry's format records failures of nodes and devices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureMemory {
    Off,
    On,
}

/// One entry while it is applied.
pub(crate) struct Transition<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) now: Timestamp,
    pub(crate) actor: &'a Actor,
    pub(crate) traceparent: &'a str,
    pub(crate) settings: Settings,
    failure_memory: FailureMemory,
    revision: u64,
    changes: BTreeSet<Change>,
}

impl<'a> Transition<'a> {
    pub(crate) fn begin(
        state: &'a mut State,
        actor: &'a Actor,
        traceparent: &'a str,
        failure_memory: FailureMemory,
    ) -> Self {
        let settings = state.settings();
        Self {
            now: state.log_time,
            actor,
            traceparent,
            settings,
            failure_memory,
            revision: state.revision + 1,
            changes: BTreeSet::new(),
            state,
        }
    }

    pub(crate) fn finish(self) -> Vec<Change> {
        if !self.changes.is_empty() {
            self.state.revision = self.revision;
        }
        self.changes.into_iter().collect()
    }

    pub(crate) fn note(&mut self, change: Change) {
        self.changes.insert(change);
    }

    // --- clusters -------------------------------------------------------------------------------------------------

    /// Changes an existing cluster.
    pub(crate) fn change_cluster(&mut self, id: &ClusterId, change: impl FnOnce(&mut crate::model::cluster::Cluster)) {
        if let Some(cluster) = self.state.clusters.get_mut(id) {
            change(cluster);
            cluster.revision = self.revision;
            self.changes.insert(Change::Cluster(id.clone()));
        }
    }

    // --- requests -------------------------------------------------------------------------------------------------

    pub(crate) fn insert_request(&mut self, mut request: Request) -> RequestId {
        self.state.next_request += 1;
        let id = RequestId(self.state.next_request);
        request.revision = self.revision;
        self.state.derived.work.add(WorkType::of(&request), 1);
        self.state.derived.note_request(id, &request, self.state.policy.as_ref());
        self.state.requests.insert(id, request);
        self.changes.insert(Change::Request(id));
        id
    }

    pub(crate) fn change_request(&mut self, id: RequestId, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.state.requests.get_mut(&id) {
            let before = request.state;
            change(request);
            debug_assert!(
                before == request.state || before.may_become(request.state),
                "{before:?} → {:?}",
                request.state
            );
            request.revision = self.revision;
            self.state.derived.note_request(id, request, self.state.policy.as_ref());
            self.changes.insert(Change::Request(id));
            self.index_growing(id);
        }
    }

    /// Updates the index of gangs that more members may join.
    fn index_growing(&mut self, id: RequestId) {
        let grows = self.state.requests.get(&id).is_some_and(|request| gang::joinable_members(self.state, request) > 0);
        if grows {
            self.state.derived.growing.insert(id);
        } else {
            self.state.derived.growing.remove(&id);
        }
    }

    // --- leases ---------------------------------------------------------------------------------------------------

    pub(crate) fn insert_lease(&mut self, mut lease: Lease) -> LeaseId {
        self.state.next_lease += 1;
        let id = LeaseId(self.state.next_lease);
        lease.revision = self.revision;
        let lender = self.state.institution_of_donor(&lease.placement.donor);
        self.account_use(&lease, lender.as_ref());
        self.state.derived.holdings.add(&lease, lender.as_ref());
        self.state.derived.occupancy.take(&lease.placement);
        self.state.derived.cluster_sums.borrow(&lease);
        self.state.derived.usage.add(&lease.as_use());
        self.state.derived.note_lease(id, &lease);
        let peering = lease.peering;
        self.note_clusters(&lease.origin.clone(), &lease.placement.donor.clone());
        self.state.leases.insert(id, lease);
        self.changes.insert(Change::Lease(id));
        self.change_peering(peering, |peering| {
            peering.leases.insert(id);
            peering.idle_since = None;
        });
        id
    }

    pub(crate) fn change_lease(&mut self, id: LeaseId, change: impl FnOnce(&mut Lease)) {
        if let Some(lease) = self.state.leases.get_mut(&id) {
            let before = lease.state;
            let (occupied, replaced) = (lease.occupies(), lease.moved_to.is_some());
            change(lease);
            debug_assert!(before == lease.state || before.may_become(lease.state), "{before:?} → {:?}", lease.state);
            lease.revision = self.revision;
            let given_back = (occupied && !lease.occupies()).then(|| lease.clone());
            if occupied && replaced != lease.moved_to.is_some() {
                self.state.derived.usage.remove(&LeaseUse { replaced, ..lease.as_use() });
                self.state.derived.usage.add(&lease.as_use());
            }
            self.state.derived.note_lease(id, lease);
            self.changes.insert(Change::Lease(id));
            let (request, origin, donor) = (lease.request, lease.origin.clone(), lease.placement.donor.clone());
            if let Some(lease) = given_back {
                self.release_capacity(&lease);
            }
            self.index_growing(request);
            self.note_clusters(&origin, &donor);
        }
    }

    /// Releases the capacity that a lease took at its donor.
    fn release_capacity(&mut self, lease: &Lease) {
        let lender = self.state.institution_of_donor(&lease.placement.donor);
        self.account_use(lease, lender.as_ref());
        self.state.derived.holdings.remove(lease, lender.as_ref());
        self.state.derived.occupancy.give_back(&lease.placement);
        self.state.derived.cluster_sums.give_back(lease);
        self.state.derived.usage.remove(&lease.as_use());
    }

    /// Accounts the past use of a lease's tenant, institution and lender. Must run before their use changes.
    fn account_use(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let State { fairness, derived, .. } = &mut *self.state;
        if let Some(ledger) = fairness {
            let lender = lender.filter(|lender| **lender != lease.institution);
            ledger.advance(lease, lender, self.now, self.settings.usage_half_life, &derived.holdings);
        }
    }

    /// Reports a change of both clusters of a lease, whose summaries show it.
    fn note_clusters(&mut self, origin: &ClusterId, donor: &ClusterId) {
        for cluster in [origin, donor] {
            if self.state.clusters.contains_key(cluster) {
                self.changes.insert(Change::Cluster(cluster.clone()));
            }
        }
    }

    /// Starts ending a lease; `reason` decides what happens to its request.
    pub(crate) fn end_lease(&mut self, id: LeaseId, reason: EndReason, message: &str) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        if !lease.state.may_become(LeaseState::Ending) {
            return;
        }
        let (request, peering, was) = (lease.request, lease.peering, lease.state);
        let (replaces, replaced_by) = (lease.moved_from, lease.moved_to);
        let now = self.now;
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
        if let Some(left) = replaced_by.filter(|_| next.is_none()) {
            self.end_lease(left, reason, message);
        }
        self.end_if_both_clean(id);
    }

    /// Records that one side of a lease has removed everything.
    pub(crate) fn report_clean(&mut self, id: LeaseId, side: Side) {
        self.change_lease(id, |lease| match side {
            Side::Origin => lease.origin_side = SideState::Clean,
            Side::Donor => lease.donor_side = SideState::Clean,
        });
        self.end_if_both_clean(id);
    }

    fn end_if_both_clean(&mut self, id: LeaseId) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        let clean = lease.donor_side == SideState::Clean && lease.origin_side == SideState::Clean;
        if lease.state != LeaseState::Ending || !clean {
            return;
        }
        let (peering, now) = (lease.peering, self.now);
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

    // --- peerings -------------------------------------------------------------------------------------------------

    /// The peering between two clusters that carries leases; proposes one if none exists.
    pub(crate) fn peering_for(&mut self, origin: &ClusterId, donor: &ClusterId) -> PeeringId {
        if let Some((id, _)) = self.state.peering_between(origin, donor) {
            return id;
        }
        self.state.next_peering += 1;
        let id = PeeringId(self.state.next_peering);
        let peering = Peering {
            origin: origin.clone(),
            donor: donor.clone(),
            state: PeeringState::Proposed,
            epoch: 1,
            deadline: Some(self.now.after(self.settings.handshake_step)),
            retry_at: None,
            failures: 0,
            origin_keys: None,
            donor_keys: None,
            established: BTreeSet::new(),
            closed: BTreeSet::new(),
            leases: BTreeSet::new(),
            idle_since: Some(self.now),
            rtt_us: 0,
            message: "waiting for both sides' keys".to_owned(),
            revision: self.revision,
        };
        self.state.derived.note_peering(id, &peering, self.settings.peering_idle);
        self.state.peerings.insert(id, peering);
        self.changes.insert(Change::Peering(id));
        id
    }

    pub(crate) fn change_peering(&mut self, id: PeeringId, change: impl FnOnce(&mut Peering)) {
        if let Some(peering) = self.state.peerings.get_mut(&id) {
            let before = peering.state;
            change(peering);
            debug_assert!(
                before == peering.state || before.may_become(peering.state),
                "{before:?} → {:?}",
                peering.state
            );
            peering.revision = self.revision;
            self.state.derived.note_peering(id, peering, self.settings.peering_idle);
            self.changes.insert(Change::Peering(id));
        }
    }

    /// Moves a handshake to its next step and sets that step's deadline.
    pub(crate) fn advance_peering(&mut self, id: PeeringId, next: PeeringState, message: &str) {
        let deadline = next.is_handshaking().then(|| self.now.after(self.settings.handshake_step));
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
        let now = self.now;
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

    // --- envelopes ------------------------------------------------------------------------------------------------

    pub(crate) fn insert_envelope(&mut self, envelope: Envelope) {
        let key = envelope.key.clone();
        self.state.derived.timers.set(Due::Envelope(key.clone()), Some(envelope.expires_at));
        self.changes.insert(Change::Envelopes(key.to.clone()));
        self.state.envelopes.insert(key, envelope);
    }

    pub(crate) fn remove_envelope(&mut self, key: &EnvelopeKey) {
        if self.state.envelopes.remove(key).is_some() {
            self.state.derived.timers.set(Due::Envelope(key.clone()), None);
            self.changes.insert(Change::Envelopes(key.to.clone()));
        }
    }

    /// Deletes the envelopes of a peering for which `which` returns true.
    pub(crate) fn drop_envelopes(&mut self, peering: PeeringId, which: impl Fn(&EnvelopeKey) -> bool) {
        let Some(ends) = self.state.peerings.get(&peering) else { return };
        let keys: Vec<EnvelopeKey> = [&ends.origin, &ends.donor]
            .into_iter()
            .flat_map(|cluster| self.state.envelopes_for(cluster))
            .map(|envelope| &envelope.key)
            .filter(|key| key.peering == peering && which(key))
            .cloned()
            .collect();
        for key in &keys {
            self.remove_envelope(key);
        }
    }
}
