//! Finds migrations: leases that move aside so that a request fits.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::migration::{
    MigrationPlacements, has_enough_free, may_be_moved, placement_without, plan_moves, priority_value,
    start_after_moves,
};
use crate::feasibility::reclaim_checks::preemption::is_making_room;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::scheduler::victims::Victim;

/// Leases of one donor that are tried one by one; those with the least work to lose come first.
pub(crate) const MAX_ALONE: usize = 64;

/// Number of those leases that are also tried in pairs.
pub(crate) const MAX_PAIRED: usize = 12;

/// Leases of one donor that move so that a request fits there.
pub(crate) struct Migration<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) moves: Vec<(LeaseId, &'a Lease)>,
    /// The places of the request and of the moved leases.
    pub(crate) places: MigrationPlacements<'a>,
}

/// The smallest migration for `spec`; among equal ones, the one with the least work to lose. `None` if moving up to
/// [`MAX_MIGRATION_MOVES`](crate::feasibility::reclaim_checks::migration::MAX_MIGRATION_MOVES) leases does not suffice.
pub(crate) fn migration_for<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    busy: &BTreeSet<&ClusterId>,
) -> Option<Migration<'a>> {
    let state = snapshot.state;
    let value = priority_value(snapshot, spec);
    let mut candidates: Vec<(&'a ClusterId, Vec<Victim<'a>>)> = Vec::new();
    for donor in state.clusters.keys().filter(|donor| donors(state, spec).any(|other| other == *donor)) {
        let is_busy = busy.contains(donor) || is_making_room(state, donor);
        if is_busy || !has_enough_free(snapshot, spec, donor) {
            continue;
        }
        let leases = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor);
        let movable = leases.filter(|(_, lease)| may_be_moved(state, lease, value));
        let mut movable: Vec<Victim<'a>> = movable.map(|(id, lease)| Victim::of(state, id, lease)).collect();
        movable.sort_by(Victim::cmp_preference);
        // Skip the donor if the departing leases suffice, or if moving every lease would not.
        let all: Vec<(LeaseId, &Lease)> = movable.iter().map(|victim| (victim.id, victim.lease)).collect();
        let start = start_after_moves(state, donor, &all);
        if !movable.is_empty()
            && placement_without(snapshot, spec, donor, &[], start).is_none()
            && placement_without(snapshot, spec, donor, &all, start).is_some()
        {
            movable.truncate(MAX_ALONE);
            candidates.push((donor, movable));
        }
    }
    let mut alone: Vec<(&'a ClusterId, Victim<'a>)> =
        candidates.iter().flat_map(|(donor, movable)| movable.iter().map(move |victim| (*donor, *victim))).collect();
    alone.sort_by(|(_, one), (_, other)| one.cmp_preference(other));
    for (donor, victim) in alone {
        let moves = vec![(victim.id, victim.lease)];
        if let Some(places) = plan_moves(snapshot, spec, donor, &moves) {
            return Some(Migration { donor, moves, places });
        }
    }
    for (donor, movable) in &candidates {
        for (at, first) in movable.iter().take(MAX_PAIRED).enumerate() {
            for second in movable.iter().take(MAX_PAIRED).skip(at + 1) {
                let moves = vec![(first.id, first.lease), (second.id, second.lease)];
                if let Some(places) = plan_moves(snapshot, spec, donor, &moves) {
                    return Some(Migration { donor, moves, places });
                }
            }
        }
    }
    None
}
