//! The part of a snapshot that concerns reservations.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use comity_types::{ClusterId, LeaseId};

use crate::feasibility::advance_reservations::donor_windows::{KeptWindow, LendableGpus, LentPart};
use crate::feasibility::held_capacity::HeldCapacity;
use crate::model::placement::Placement;
use crate::model::time::Timestamp;

/// Reservations as one plan sees them. Costs nothing at donors that have none.
#[derive(Clone, Default)]
pub(crate) struct KeptView<'a> {
    /// When a lease would start that is asked about, or taken; `None` for now.
    pub(crate) starts_at: Option<Timestamp>,
    /// Whether reservations do not count.
    pub(crate) ignored: bool,
    /// What the plan placed, by donor that has reservations.
    pub(super) changes: BTreeMap<ClusterId, Vec<PlanChange>>,
    /// Leases that the plan released at such donors.
    pub(super) released: BTreeSet<LeaseId>,
    /// Facts that do not change during a plan, by donor. Copies of the snapshot share them.
    pub(super) facts: Rc<RefCell<BTreeMap<ClusterId, Rc<DonorFacts<'a>>>>>,
}

/// A donor's windows, leases and capacity in the state.
pub(crate) struct DonorFacts<'a> {
    pub(super) windows: Vec<KeptWindow<'a>>,
    pub(super) lent: Vec<LentPart<'a>>,
    pub(super) lendable: LendableGpus<'a>,
}

/// Something that the plan placed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PlanChange {
    placement: Placement,
    pub(super) tenant: String,
    pub(super) class: String,
    /// When it begins.
    pub(super) from: Timestamp,
    /// Until when it stays at the least.
    pub(super) until: Timestamp,
}

impl KeptView<'_> {
    /// Notes a placement that stays at the least for these times.
    pub(crate) fn note_taken(
        &mut self,
        placement: &Placement,
        (tenant, class): (&str, &str),
        (from, until): (Timestamp, Timestamp),
    ) {
        self.changes.entry(placement.donor.clone()).or_default().push(PlanChange {
            placement: placement.clone(),
            tenant: tenant.to_owned(),
            class: class.to_owned(),
            from,
            until,
        });
    }

    /// Notes that a lease, or a placement of the plan, is gone.
    pub(crate) fn note_released(&mut self, held: &HeldCapacity<'_>) {
        if let Some(lease) = held.lease {
            self.released.insert(lease);
            return;
        }
        let Some(changes) = self.changes.get_mut(&held.placement.donor) else { return };
        // Equal placements of a tenant and class are interchangeable.
        let taken = |change: &PlanChange| {
            change.tenant == held.counts.tenant
                && change.class == held.counts.class
                && change.placement == *held.placement
        };
        if let Some(at) = changes.iter().position(taken) {
            changes.remove(at);
        }
    }

    /// The same for a snapshot with other nodes.
    pub(crate) fn with_other_nodes<'b>(self) -> KeptView<'b> {
        let Self { starts_at, ignored, changes, released, facts: _ } = self;
        KeptView { starts_at, ignored, changes, released, facts: Rc::default() }
    }

    /// Whether the plans placed and released the same, in whatever order.
    pub(crate) fn has_same_changes(&self, other: &Self) -> bool {
        let nothing = Vec::new();
        let mut donors = self.changes.keys().chain(other.changes.keys());
        self.released == other.released
            && donors.all(|donor| {
                let [own, others] = [self, other].map(|view| view.changes.get(donor).unwrap_or(&nothing));
                let count = |all: &[PlanChange], change: &PlanChange| all.iter().filter(|it| *it == change).count();
                own.len() == others.len() && own.iter().all(|change| count(own, change) == count(others, change))
            })
    }
}

impl PlanChange {
    /// Whether it counts at `at`.
    pub(super) fn counts_at(&self, at: Timestamp) -> bool {
        self.from <= at && at < self.until
    }

    /// Thousandths of GPUs.
    pub(super) fn milli(&self) -> u64 {
        self.placement.milli()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::KeptView;

    #[test]
    fn copies_share_the_facts_about_donors_and_a_view_of_other_nodes_has_its_own() {
        let view = KeptView::default();
        let copy = view.clone();
        assert!(Rc::ptr_eq(&view.facts, &copy.facts));
        assert!(!Rc::ptr_eq(&view.facts, &copy.with_other_nodes().facts));
    }
}
