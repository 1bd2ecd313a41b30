//! Which leases move aside for a request, found.

use std::collections::BTreeSet;

use crate::feasibility::donors::promise::donors;
use crate::feasibility::reclaim_checks::preemption::{for_whom, going};
use crate::feasibility::reclaim_checks::repair::{Places, is_free_in_sum, lets_in, may_move, value, without};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, LeaseId};
use crate::model::lease::Lease;
use crate::scheduler::victims::Victim;

/// Leases of one donor that are tried one by one, those that lose least first.
pub(crate) const MAX_ALONE: usize = 64;

/// Of these so many are tried in pairs.
pub(crate) const MAX_PAIRED: usize = 12;

/// Leases of one donor that move so that a request fits there.
pub(crate) struct Repair<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) moves: Vec<(LeaseId, &'a Lease)>,
    /// Where everybody goes.
    pub(crate) places: Places<'a>,
}

/// The fewest leases that let `spec` in by moving, those that lose the least work first; `None` if no [`MAX_MOVES`] do.
pub(crate) fn repair_for<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    busy: &BTreeSet<&ClusterId>,
) -> Option<Repair<'a>> {
    let state = snapshot.state;
    let value = value(snapshot, spec);
    let mut places: Vec<(&'a ClusterId, Vec<Victim<'a>>)> = Vec::new();
    for donor in state.clusters.keys().filter(|donor| donors(state, spec).any(|other| other == *donor)) {
        let taken = busy.contains(donor) || going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some());
        if taken || !is_free_in_sum(snapshot, spec, donor) {
            continue;
        }
        let leases = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor);
        let may = leases.filter(|(_, lease)| may_move(state, lease, value));
        let mut may: Vec<Victim<'a>> = may.map(|(id, lease)| Victim::of(state, id, lease)).collect();
        may.sort_by(Victim::in_order);
        // It fits there as soon as what goes already is gone, or not even without all of these.
        let all: Vec<(LeaseId, &Lease)> = may.iter().map(|victim| (victim.id, victim.lease)).collect();
        if !may.is_empty()
            && without(snapshot, spec, donor, &[]).is_none()
            && without(snapshot, spec, donor, &all).is_some()
        {
            may.truncate(MAX_ALONE);
            places.push((donor, may));
        }
    }
    let mut alone: Vec<(&'a ClusterId, Victim<'a>)> =
        places.iter().flat_map(|(donor, may)| may.iter().map(move |victim| (*donor, *victim))).collect();
    alone.sort_by(|(_, one), (_, other)| one.in_order(other));
    for (donor, victim) in alone {
        let moves = vec![(victim.id, victim.lease)];
        if let Some(places) = lets_in(snapshot, spec, donor, &moves) {
            return Some(Repair { donor, moves, places });
        }
    }
    for (donor, may) in &places {
        for (at, first) in may.iter().take(MAX_PAIRED).enumerate() {
            for second in may.iter().take(MAX_PAIRED).skip(at + 1) {
                let moves = vec![(first.id, first.lease), (second.id, second.lease)];
                if let Some(places) = lets_in(snapshot, spec, donor, &moves) {
                    return Some(Repair { donor, moves, places });
                }
            }
        }
    }
    None
}
