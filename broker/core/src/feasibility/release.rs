//! Checks whether a demand fits once leases are gone.

use comity_types::{ClusterId, LeaseId};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::fit;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::reclaim_checks::preemption::departing_leases;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{FeasiblePlacement, ask_donor};
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::state::State;
use crate::state::notice::end_if_reclaimed;

/// The placement of `spec` at `donor` once `gone` are released.
pub(crate) fn fits_after_release(
    snapshot: &Snapshot<'_>,
    gone: &[&HeldCapacity<'_>],
    spec: &RequestSpec,
    donor: &ClusterId,
) -> Option<FeasiblePlacement> {
    let mut snapshot = snapshot.clone();
    for held in gone {
        snapshot.release(held);
    }
    placement_at(&snapshot, spec, donor)
}

/// The placement of `spec` at `donor`, where its lease starts at `start`, once the leases in `gone` have ended.
pub(crate) fn fits_when_gone<'l>(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    gone: impl Iterator<Item = (LeaseId, &'l Lease)>,
    start: Timestamp,
) -> Option<FeasiblePlacement> {
    let mut snapshot = snapshot.clone();
    snapshot.kept.starts_at = Some(start);
    gone.for_each(|(id, lease)| snapshot.release_lease(id, lease));
    placement_at(&snapshot, spec, donor)
}

/// When a request starts for which the leases in `set` are reclaimed now for `reason`: once they have ended, and those
/// that depart from its donor anyway.
pub(crate) fn start_after_reclaims<'l>(
    state: &State,
    donor: &ClusterId,
    set: impl Iterator<Item = &'l Lease>,
    reason: &ReclaimReason,
) -> Timestamp {
    let ends = set.map(|lease| end_if_reclaimed(state, lease, reason));
    ends.fold(last_end(state, departing_leases(state, donor)), Timestamp::max)
}

/// When the last of these leases, which depart, ends at the latest; now if there are none.
pub(crate) fn last_end<'l>(state: &State, departing: impl Iterator<Item = (LeaseId, &'l Lease)>) -> Timestamp {
    let ends = departing.map(|(_, lease)| lease.latest_end(state.log_time));
    ends.max().unwrap_or(state.log_time)
}

fn placement_at(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> Option<FeasiblePlacement> {
    let mut mig_values = MigValues::default();
    ask_donor(snapshot, spec, donor, &mut |snapshot, donor, wanted| fit(snapshot, donor, wanted, &mut mig_values)).ok()
}
