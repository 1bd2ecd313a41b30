//! Changes of leases, with the capacity they take and the use they count.

use comity_policy::{DocRef, LeaseUse};
use comity_types::{ClusterId, InstitutionId, LeaseId, LeaseState};

use crate::model::lease::Lease;
use crate::model::meter::Meter;
use crate::model::reply::Change;
use crate::state::Records;
use crate::state::gpu_time::booking;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Adds a lease: it takes its capacity at the donor and joins its peering. `reasons` are the documents that permit
    /// it.
    pub(crate) fn insert_lease(&mut self, mut lease: Lease, reasons: Vec<DocRef>) -> LeaseId {
        lease.revision = self.revision;
        let lender = self.state.institution_of_donor(&lease.placement.donor);
        self.account_use(&lease, lender.as_ref());
        let records = self.records();
        records.next_lease += 1;
        let id = LeaseId(records.next_lease);
        records.derived.holdings.add(&lease, lender.as_ref());
        records.derived.occupancy.take(&lease.placement);
        records.derived.cluster_sums.borrow(&lease);
        records.derived.usage.add(&lease.as_use());
        records.derived.note_lease(id, &lease);
        if let (Some(record), Some(booking)) = (&records.policy, booking(&lease)) {
            let booked = &mut records.derived.gpu_time;
            record.bundle.for_each_period(&booking, |key, span, time| booked.add(key, span.start_ms, time));
        }
        let (peering, origin, donor) = (lease.peering, lease.origin.clone(), lease.placement.donor.clone());
        records.leases.insert(id, lease);
        self.audit_placement(id, reasons);
        self.note_clusters(&origin, &donor);
        self.note(Change::Lease(id));
        self.change_peering(peering, |peering| {
            peering.leases.insert(id);
            peering.idle_since = None;
        });
        id
    }

    /// Changes a lease. Releases its capacity once it no longer occupies any.
    pub(crate) fn change_lease(&mut self, id: LeaseId, change: impl FnOnce(&mut Lease)) {
        self.change_lease_because(id, Vec::new(), change);
    }

    /// As [`change_lease`](Self::change_lease), for a decision that follows from documents of policy.
    pub(crate) fn change_lease_because(&mut self, id: LeaseId, reasons: Vec<DocRef>, change: impl FnOnce(&mut Lease)) {
        let (revision, now) = (self.revision, self.now);
        let Records { leases, derived, policy, gpu_time, .. } = &mut self.state.records;
        let Some(lease) = leases.get_mut(&id) else { return };
        let before = (lease.state, lease.reclaim.as_ref().map(|reclaim| reclaim.reason.clone()));
        let (occupied, replaced) = (lease.occupies(), lease.moved_to.is_some());
        let bundle = policy.as_ref().map(|record| &record.bundle);
        let limited = bundle.filter(|bundle| bundle.limits_gpu_time_of(lease.tenant.as_str()));
        let counted = limited.map(|bundle| (bundle, lease.clone()));
        change(lease);
        if matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
            lease.meter = Meter::Stopped;
        }
        if let Some((bundle, before)) = counted {
            gpu_time.rebook(bundle, &mut derived.gpu_time, [&before, lease], now);
        }
        lease.revision = revision;
        if occupied && replaced != lease.moved_to.is_some() {
            derived.usage.remove(&LeaseUse { replaced, ..lease.as_use() });
            derived.usage.add(&lease.as_use());
        }
        derived.note_lease(id, lease);
        let after = lease.state;
        let (request, origin, donor) = (lease.request, lease.origin.clone(), lease.placement.donor.clone());
        let released = (occupied && !lease.occupies()).then(|| lease.clone());
        self.check_move(id, before.0, after, LeaseState::may_become);
        self.audit_lease_move(id, &before, reasons);
        self.note(Change::Lease(id));
        if let Some(lease) = released {
            self.release_capacity(&lease);
        }
        self.index_parts(request);
        self.note_clusters(&origin, &donor);
    }

    /// Releases the capacity that a lease took at its donor.
    fn release_capacity(&mut self, lease: &Lease) {
        let lender = self.state.institution_of_donor(&lease.placement.donor);
        self.account_use(lease, lender.as_ref());
        let derived = &mut self.records().derived;
        derived.holdings.remove(lease, lender.as_ref());
        derived.occupancy.give_back(&lease.placement);
        derived.cluster_sums.give_back(lease);
        derived.usage.remove(&lease.as_use());
    }

    /// Accounts the past use of a lease's tenant, institution and lender. Must run before their use changes.
    fn account_use(&mut self, lease: &Lease, lender: Option<&InstitutionId>) {
        let (now, half_life) = (self.now, self.settings.usage_half_life);
        let Records { fairness, derived, .. } = self.records();
        let lender = lender.filter(|lender| **lender != lease.institution);
        fairness.advance(lease, lender, now, half_life, &derived.holdings);
    }

    /// Reports a change of both clusters of a lease, whose summaries show it.
    fn note_clusters(&mut self, origin: &ClusterId, donor: &ClusterId) {
        for cluster in [origin, donor] {
            if self.state.clusters.contains_key(cluster) {
                self.note(Change::Cluster(cluster.clone()));
            }
        }
    }
}
