//! Detects donors that lend, shortly before a window of a reservation and in it, what they keep for its tenant.
//!
//! Only preemptible leases are reclaimed for that. The others were granted before the reservation came into force, or
//! end before its windows begin.

use std::collections::BTreeSet;

use comity_policy::DocRef;
use comity_types::{ClusterId, LeaseId, LeaseState, LeaseTreatment};

use crate::feasibility::advance_reservations::check_kept::RESERVED;
use crate::feasibility::advance_reservations::donor_windows::{
    KeptWindow, LendableGpus, LentPart, is_preemptible, kept_windows, lent_parts,
};
use crate::feasibility::advance_reservations::kept_at_donor::lendable_gpus;
use crate::feasibility::advance_reservations::moment::Moment;
use crate::feasibility::snapshot::Snapshot;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::state::State;
use crate::state::notice::schedule_notice;

/// The reason of such reclaims.
pub(crate) fn reason() -> ReclaimReason {
    ReclaimReason::PolicyChanged { code: RESERVED.to_owned(), treatment: LeaseTreatment::Drain }
}

/// Whether a lease may be reclaimed for a reservation.
pub(crate) fn may_reclaim(state: &State, lease: &Lease) -> bool {
    is_preemptible(state, lease)
}

/// What a donor keeps from now until its notice has passed, beside its leases.
pub(crate) struct KeptNeed<'a> {
    windows: Vec<KeptWindow<'a>>,
    lent: Vec<LentPart<'a>>,
    lendable: LendableGpus<'a>,
    now: Timestamp,
}

impl<'a> KeptNeed<'a> {
    /// `None` if no window is open, or opens within the donor's notice.
    pub(crate) fn of(state: &'a State, donor: &ClusterId, now: Timestamp) -> Option<Self> {
        let bundle = &*state.policy.as_ref()?.bundle;
        if !bundle.has_reservations_at(donor.as_str()) {
            return None;
        }
        let until = now.after(schedule_notice(bundle, donor));
        // A window that opens when the notice has passed counts, too.
        let windows = kept_windows(bundle, donor, now, Timestamp(until.0.saturating_add(1)));
        if windows.is_empty() {
            return None;
        }
        let lendable = lendable_gpus(&Snapshot::new(state)?, donor);
        Some(Self { windows, lent: lent_parts(state, bundle, donor, now), lendable, now })
    }

    /// Thousandths of GPUs that leases would hold of what is kept for others, once `gone` are gone; summed over the
    /// moments at which windows open.
    pub(crate) fn shortage_milli(&self, gone: &BTreeSet<LeaseId>) -> u64 {
        let openings = self.windows.iter().map(|window| self.now.max(Timestamp(window.span.start_ms)));
        let mut moments: Vec<Timestamp> = openings.collect();
        moments.dedup();
        moments.into_iter().map(|at| self.moment(at, gone).shortage(&self.lendable)).sum()
    }

    fn moment(&self, at: Timestamp, gone: &BTreeSet<LeaseId>) -> Moment<'_> {
        let mut moment = Moment::of(&self.windows, at);
        let stay = self.lent.iter().filter(|part| !gone.contains(&part.id));
        for LentPart { lease, .. } in stay.filter(|part| self.end_if_spared(part.lease) > at) {
            moment.add_lent(lease.tenant.as_str(), lease.class.as_str(), lease.placement.milli());
        }
        moment
    }

    /// The latest end of a lease without a reclaim for a reservation, whose need is in question.
    fn end_if_spared(&self, lease: &Lease) -> Timestamp {
        let is_reclaimed = lease.reclaim.as_ref().is_some_and(|reclaim| reclaim.reason == reason());
        match lease.expires_at {
            Some(expires_at) if is_reclaimed && lease.state == LeaseState::Reclaiming => expires_at.max(self.now),
            _ => lease.latest_end(self.now),
        }
    }

    /// The first window, for people.
    pub(crate) fn text(&self) -> String {
        let shown = self.windows.first().map(KeptWindow::text);
        shown.map_or_else(String::new, |window| format!("it keeps {window}"))
    }

    /// The reservations behind a shortage, for the record of a reclaim.
    pub(crate) fn documents(&self) -> Vec<DocRef> {
        let mut documents: Vec<DocRef> = self.windows.iter().map(|window| window.reservation.cite("gpus")).collect();
        documents.sort_unstable();
        documents.dedup();
        documents
    }
}
