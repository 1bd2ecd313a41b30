//! What follows when a cluster takes no further part: its leases and peerings end without its word.

use std::collections::BTreeMap;

use comity_types::{
    ClusterId, LeaseId, LeaseState, LeaseTreatment, PeeringId, PeeringState, RequestId, RequestState, Side,
};

use crate::apply::command::clusters::mark_clusters::refresh_suspicion;
use crate::model::lease::{Lease, SideState};
use crate::model::reclaim::{Reclaim, ReclaimReason};
use crate::state::State;
use crate::state::notice::notice;
use crate::state::transition::Transition;

/// Waiting requests of an origin.
pub(crate) fn waiting_at(state: &State, origin: &ClusterId) -> Vec<RequestId> {
    state.queued().filter(|(_, request)| request.spec.origin == *origin).map(|(id, _)| id).collect()
}

/// How clusters and leases are treated because an institution is suspended.
#[derive(Default)]
pub(crate) struct Treatments {
    clusters: BTreeMap<ClusterId, LeaseTreatment>,
    leases: BTreeMap<LeaseId, LeaseTreatment>,
}

impl State {
    /// What the suspensions in force treat under the policy in force: clusters, and leases because of their borrowers.
    pub(crate) fn treatments(&self) -> Treatments {
        if self.suspensions.is_empty() {
            return Treatments::default();
        }
        let clusters = self.clusters.keys().filter_map(|id| Some((id.clone(), self.treatment_of_cluster(id)?)));
        let leases = self.live_leases().filter_map(|(id, lease)| Some((id, self.treatment_of_borrower(lease)?)));
        Treatments { clusters: clusters.collect(), leases: leases.collect() }
    }
}

impl Transition<'_> {
    /// Treats the leases and peerings of a cluster that takes no further part from now on, as an exclusion in the state
    /// says already.
    pub(crate) fn withdraw_cluster(&mut self, cluster: &ClusterId, treatment: LeaseTreatment) {
        let now = self.now();
        self.change_cluster(cluster, |cluster| {
            if cluster.connected {
                cluster.since = now;
            }
            cluster.connected = false;
        });
        let leases: Vec<LeaseId> = self.state().leases_of(cluster).map(|(id, _)| id).collect();
        leases.into_iter().for_each(|id| self.treat_lease(id, treatment));
        let peerings: Vec<PeeringId> = self.state().peerings_of(cluster).map(|(id, _)| id).collect();
        peerings.into_iter().for_each(|id| self.close_if_revoked(id));
    }

    /// Ends the leases and peerings of a cluster at once. `why` says what the cluster did.
    pub(crate) fn end_part(&mut self, cluster: &ClusterId, why: &str) {
        let sides = self.state().leases_of(cluster).filter_map(|(id, lease)| Some((id, lease.side_of(cluster)?)));
        let sides: Vec<(LeaseId, Side)> = sides.collect();
        for (id, side) in sides {
            let reason = ReclaimReason::Revoked { side, by: None };
            self.end_lease(id, reason.ends_at_once(), &format!("its {side} {why}"));
        }
        let peerings = self.state().peerings_of(cluster).filter(|(_, peering)| peering.state != PeeringState::Draining);
        let peerings: Vec<PeeringId> = peerings.map(|(id, _)| id).collect();
        peerings.into_iter().for_each(|id| self.drain_peering(id, &format!("one side {why}")));
    }

    /// Lets a lease finish, drains or stops it, because one side takes no further part. A lease that is not in force yet
    /// never will be, so it stops.
    pub(crate) fn treat_lease(&mut self, id: LeaseId, treatment: LeaseTreatment) {
        let state = self.state();
        let Some(lease) = state.leases.get(&id) else { return };
        let side = if state.treatment_of_borrower(lease) >= Some(treatment) { Side::Origin } else { Side::Donor };
        let reason = self.revoked(lease, side);
        match (lease.state, treatment) {
            (LeaseState::Ended, _) => {}
            (LeaseState::Ending, _) => {
                self.clean_for_evicted(id);
                self.end_if_both_clean(id);
            }
            (LeaseState::Active | LeaseState::Suspect | LeaseState::Reclaiming, LeaseTreatment::Finish) => {
                refresh_suspicion(self, id);
            }
            (LeaseState::Active | LeaseState::Suspect, LeaseTreatment::Drain) => {
                let request = lease.request;
                // The request was served, so its count of attempts starts again.
                self.change_request(request, |request| request.attempts = 0);
                self.drain_lease(id, reason);
            }
            (LeaseState::Reclaiming, LeaseTreatment::Drain) => {
                let reclaim = lease.reclaim.as_ref();
                // The lease of a revoked user ends in any case.
                if reclaim.is_none_or(|it| !matches!(it.reason, ReclaimReason::UserRevoked { .. })) {
                    self.drain_lease(id, reason);
                }
            }
            (LeaseState::Placed | LeaseState::Connecting, _) | (_, LeaseTreatment::Stop) => {
                self.end_lease(id, reason.ends_at_once(), &reason.to_string());
            }
        }
    }

    /// The reason why a lease is drained or stopped because of one side. The request for which it was being reclaimed
    /// still gets the capacity, unless the donor takes no part.
    fn revoked(&self, lease: &Lease, side: Side) -> ReclaimReason {
        let by = lease.reclaim.as_ref().and_then(|reclaim| reclaim.reason.for_request());
        ReclaimReason::Revoked { side, by: by.filter(|_| self.state().check_part(&lease.placement.donor).is_ok()) }
    }

    /// Reclaims a lease in force with the donor's notice. If it is being reclaimed already, only the reason changes,
    /// unless the notice of this reason ends earlier.
    pub(super) fn drain_lease(&mut self, id: LeaseId, reason: ReclaimReason) {
        let Some(lease) = self.state().leases.get(&id) else { return };
        let (grace, since) = (notice(self.state(), lease, &reason), self.now());
        let drained = Reclaim { reason, since, grace, deadline: since.after(grace) };
        self.change_lease(id, |lease| {
            lease.state = LeaseState::Reclaiming;
            lease.message = format!("reclaimed: {}", drained.reason);
            match &mut lease.reclaim {
                Some(begun) if begun.deadline <= drained.deadline => begun.reason = drained.reason,
                reclaim => *reclaim = Some(drained),
            }
        });
    }

    /// Treats the clusters and leases that a policy moves into a suspended institution. `before` is how they were
    /// treated under the policy before.
    pub(crate) fn treat_moved(&mut self, before: &Treatments) {
        let Treatments { clusters, leases } = self.state().treatments();
        for (cluster, treatment) in clusters {
            if before.clusters.get(&cluster).is_none_or(|earlier| *earlier < treatment) {
                self.withdraw_cluster(&cluster, treatment);
            }
        }
        for (lease, treatment) in leases {
            if before.leases.get(&lease).is_none_or(|earlier| *earlier < treatment) {
                self.treat_lease(lease, treatment);
            }
        }
        self.refresh_drained_sides();
    }

    /// Names the side for which leases are drained, after the other one takes part again.
    pub(crate) fn refresh_drained_sides(&mut self) {
        let state = self.state();
        let stale = state.reclaiming().filter_map(|(id, lease)| {
            let ReclaimReason::Revoked { side: named, .. } = lease.reclaim.as_ref()?.reason else { return None };
            let side = state.drained_side(lease).filter(|side| *side != named)?;
            Some((id, self.revoked(lease, side)))
        });
        let stale: Vec<(LeaseId, ReclaimReason)> = stale.collect();
        stale.into_iter().for_each(|(id, reason)| self.drain_lease(id, reason));
    }

    /// Cancels the waiting requests of an origin.
    pub(crate) fn cancel_waiting(&mut self, requests: &[RequestId], message: &str) {
        for id in requests {
            self.change_request(*id, |request| {
                request.state = RequestState::Cancelled;
                message.clone_into(&mut request.message);
            });
        }
    }

    /// Counts the evicted side of an ending lease as clean: nobody reports for it any more.
    pub(super) fn clean_for_evicted(&mut self, id: LeaseId) {
        let Some(lease) = self.state().leases.get(&id).filter(|lease| lease.state == LeaseState::Ending) else {
            return;
        };
        let (origin, donor) =
            (is_evicted(self.state(), &lease.origin), is_evicted(self.state(), &lease.placement.donor));
        if !origin && !donor {
            return;
        }
        self.change_lease(id, |lease| {
            if origin {
                lease.origin_side = SideState::Clean;
            }
            if donor {
                lease.donor_side = SideState::Clean;
            }
        });
    }

    /// Closes a peering with a cluster that takes no further part, once no lease in force uses it. Tunnels do not wait
    /// until the leases have been removed.
    pub(super) fn close_if_revoked(&mut self, id: PeeringId) {
        let Some(peering) = self.state().peerings.get(&id) else { return };
        let sides = [(Side::Origin, peering.origin.clone()), (Side::Donor, peering.donor.clone())];
        if sides.iter().all(|(_, cluster)| self.state().check_part(cluster).is_ok()) {
            return;
        }
        let mut leases = peering.leases.iter().filter_map(|lease| self.state().leases.get(lease));
        if peering.state == PeeringState::Closed || leases.any(|lease| lease.state != LeaseState::Ending) {
            return;
        }
        if peering.state != PeeringState::Draining {
            self.drain_peering(id, "one side was evicted or suspended");
        }
        for (side, cluster) in sides {
            let is_open = self.state().peerings.get(&id).is_some_and(|peering| !peering.closed.contains(&side));
            if is_open && is_evicted(self.state(), &cluster) {
                self.close_side(id, side);
            }
        }
    }
}

pub(super) fn is_evicted(state: &State, cluster: &ClusterId) -> bool {
    state.clusters.get(cluster).is_some_and(|cluster| cluster.evicted.is_some())
}
