//! Reservations at one donor, beside its leases and the placements of a plan.

use std::collections::BTreeSet;
use std::rc::Rc;

use comity_types::{ClusterId, LeaseId};

use crate::feasibility::advance_reservations::donor_windows::{
    AHEAD, KeptWindow, LendableGpus, LentPart, kept_windows, lent_parts,
};
use crate::feasibility::advance_reservations::kept_view::{DonorFacts, PlanChange};
use crate::feasibility::advance_reservations::moment::Moment;
use crate::feasibility::obstacle::lendable_milli;
use crate::feasibility::snapshot::Snapshot;
use crate::model::time::Timestamp;

/// What a donor can lend: healthy devices that local work does not hold, beside the local reserve, and within
/// `maxLentGpus`.
pub(crate) fn lendable_gpus<'a>(snapshot: &Snapshot<'a>, donor: &ClusterId) -> LendableGpus<'a> {
    let terms = snapshot.bundle.clusters.get(donor.as_str()).map(|terms| &terms.spec);
    let reserve = terms.map_or(0, |terms| terms.local_reserve_gpus_milli);
    let most = terms.and_then(|terms| terms.max_lent_gpus_milli).unwrap_or(u64::MAX);
    let in_all = lendable_milli(snapshot, donor).saturating_sub(reserve).min(most);
    LendableGpus::of(snapshot.nodes(donor).map(|(_, node, classes)| (node, classes)), in_all)
}

/// A donor's reservations beside its leases and the placements of a plan.
pub(crate) struct KeptAtDonor<'s, 'a> {
    facts: Rc<DonorFacts<'a>>,
    changes: &'s [PlanChange],
    released: &'s BTreeSet<LeaseId>,
}

impl<'s, 'a> KeptAtDonor<'s, 'a> {
    /// `None` if the donor has no reservations, or if they do not count.
    pub(crate) fn of(snapshot: &'s Snapshot<'a>, donor: &ClusterId) -> Option<Self> {
        let view = &snapshot.kept;
        if !snapshot.bundle.has_reservations_at(donor.as_str()) || view.ignored || snapshot.when_idle {
            return None;
        }
        let known = view.facts.borrow().get(donor).map(Rc::clone);
        let facts = known.unwrap_or_else(|| {
            let (state, bundle, now) = (snapshot.state, snapshot.bundle, snapshot.state.log_time);
            let found = Rc::new(DonorFacts {
                windows: kept_windows(bundle, donor, now, now.after(AHEAD)),
                lent: lent_parts(state, bundle, donor, now),
                lendable: lendable_gpus(snapshot, donor),
            });
            view.facts.borrow_mut().insert(donor.clone(), Rc::clone(&found));
            found
        });
        let changes = view.changes.get(donor).map_or(&[][..], Vec::as_slice);
        Some(Self { facts, changes, released: &view.released })
    }

    pub(crate) fn windows(&self) -> &[KeptWindow<'a>] {
        &self.facts.windows
    }

    /// Thousandths of GPUs of a class that leases of a tenant have at `at`.
    pub(crate) fn lent_milli(&self, tenant: &str, class: &str, at: Timestamp) -> u64 {
        let of_tenant = self.facts.lent.iter().map(|part| part.lease).filter(|lease| {
            lease.tenant.as_str() == tenant && lease.class.as_str() == class && lease.latest_end(at) > at
        });
        of_tenant.map(|lease| lease.placement.milli()).sum()
    }

    pub(crate) fn lendable(&self) -> &LendableGpus<'a> {
        &self.facts.lendable
    }

    /// When what the plan placed begins.
    pub(crate) fn planned_starts(&self) -> impl Iterator<Item = Timestamp> {
        self.changes.iter().map(|change| change.from)
    }

    /// All shares at `at`; empty if nothing is kept then.
    pub(crate) fn moment(&self, at: Timestamp) -> Moment<'_> {
        let mut moment = Moment::of(&self.facts.windows, at);
        if moment.is_empty() {
            return moment;
        }
        let stays = |part: &&LentPart<'_>| part.until > at && !self.released.contains(&part.id);
        for LentPart { lease, .. } in self.facts.lent.iter().filter(stays) {
            moment.add_lent(lease.tenant.as_str(), lease.class.as_str(), lease.placement.milli());
        }
        for change in self.changes.iter().filter(|change| change.counts_at(at)) {
            moment.add_lent(&change.tenant, &change.class, change.milli());
        }
        moment
    }
}
